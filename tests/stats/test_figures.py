"""Figures that are functions of sums: macro-F1, errors of numbers, a corpus score; their errors against resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ttabench.core.errors import UserError
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import difference, estimate
from ttabench.stats.figures import (
    CORPUS_FIGURES,
    MACRO_F1,
    MEAN,
    PERPLEXITY,
    ROOT_MEAN_SQUARE,
    Figure,
    Sums,
)

LABELS = ("sports", "politics", "travel")


def numeric(inner: Callable[[Sums], float | None]) -> Callable[[Sums], Callable[[Sums], float]]:
    """Pulls of a figure without a known gradient, by central differences; 0 by sums at whose side it is no number."""

    def at(sums: Sums) -> Callable[[Sums], float]:
        step = 1e-6 * max(1.0, *(abs(total) for total in sums))
        slopes = []
        for place, total in enumerate(sums):
            up, down = (
                inner([*sums[:place], total + sign * step, *sums[place + 1 :]]) for sign in (1, -1)
            )
            slopes.append(0.0 if up is None or down is None else (up - down) / (2 * step))
        return lambda terms: math.fsum(
            slope * term for slope, term in zip(slopes, terms, strict=True)
        )

    return at


def answer(cluster: str, written: str, right: str) -> Observation:
    return Observation(cluster, (written, right, False))


def labelled(
    generator: np.random.Generator, n: int, right: float = 0.7, clusters: int = 0
) -> list[Observation]:
    gold = generator.integers(0, 3, n)
    given = np.where(generator.random(n) < right, gold, generator.integers(0, 3, n))
    return [
        answer(str(i % clusters if clusters else i), LABELS[g], LABELS[t])
        for i, (g, t) in enumerate(zip(given, gold, strict=True))
    ]


def test_macro_f1_is_that_of_scikit_learn() -> None:
    some = [*labelled(np.random.default_rng(0), 60), answer("x", "no such label", "travel")]
    found = estimate(some, CORPUS_FIGURES["macro_f1"])
    theirs = f1_score(
        [w.terms[1] for w in some], [w.terms[0] for w in some], labels=LABELS, average="macro"
    )
    assert found.mean == pytest.approx(theirs)
    assert (found.n, found.weight) == (61, 61)


def test_an_option_that_is_chosen_and_never_right_is_a_label() -> None:
    some = [
        w._replace(terms=(*w.terms[:2], True))
        for w in labelled(np.random.default_rng(4), 40)
        if w.terms[1] != "travel"
    ]
    assert {w.terms[0] for w in some} == set(LABELS)
    found = estimate(some, CORPUS_FIGURES["macro_f1"])
    theirs = f1_score([w.terms[1] for w in some], [w.terms[0] for w in some], average="macro")
    assert found.mean == pytest.approx(theirs)
    apart = difference(
        some,
        [w._replace(terms=(w.terms[1], *w.terms[1:])) for w in some],
        CORPUS_FIGURES["macro_f1"],
    )
    assert apart.value == pytest.approx(theirs - 1), "three labels on one side, two on the other"


@pytest.mark.parametrize("name", ["macro_f1", "rmse", "mae"])
def test_errors_are_those_of_many_draws(name: str) -> None:
    generator = np.random.default_rng(1)

    def draw() -> list[Observation]:
        if name == "macro_f1":
            return labelled(generator, 120)
        right = generator.integers(1, 6, 120)
        given = np.clip(right + generator.integers(-2, 3, 120), 1, 5)
        return [
            answer(str(i), str(g), str(t))
            for i, (g, t) in enumerate(zip(given, right, strict=True))
        ]

    found = [estimate(draw(), CORPUS_FIGURES[name]) for _ in range(300)]
    values = [each.mean for each in found if each is not None]
    errors = [each.stderr for each in found if each is not None and each.stderr is not None]
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.12)


def test_numbers_are_found_in_answers() -> None:
    some = [answer("a", "I give it 4.", "5"), answer("b", "no idea", "2"), answer("c", "1", "1")]
    errors, roots = (estimate(some, CORPUS_FIGURES[name]) for name in ("mae", "rmse"))
    assert errors.mean == pytest.approx((1 + 3 + 0) / 3), (
        "no number counts as 5, the furthest from 2"
    )
    assert roots.mean == pytest.approx(math.sqrt((1 + 9) / 3))
    with pytest.raises(UserError, match="'five'"):
        estimate([answer("a", "4", "five")], CORPUS_FIGURES["mae"])


@pytest.mark.parametrize(
    ("figure", "sums"),
    [
        (MEAN, (3.0, 7.0)),
        (PERPLEXITY, (30.0, 12.0)),
        (ROOT_MEAN_SQUARE, (30.0, 12.0)),
        (MACRO_F1, (3.0, 4.0, 6.0, 1.0, 3.0, 2.0)),
    ],
)
def test_pulls_are_the_gradient_and_sum_to_nothing(figure: Figure, sums: Sequence[float]) -> None:
    ours, theirs = figure.influence(sums), numeric(figure.inner)(sums)
    for place in range(len(sums)):
        terms = [float(at == place) for at in range(len(sums))]
        assert ours(terms) == pytest.approx(theirs(terms), abs=1e-6)
    assert ours(sums) == pytest.approx(0.0, abs=1e-12)
