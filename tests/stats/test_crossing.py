"""Errors where the same questions are asked under several draws: both vary, and either alone is too narrow."""

from __future__ import annotations

import numpy as np
import pytest
from bench_coverage import (
    Asking,
    Kind,
    all_queries,
    binary,
    continuous,
    coverage,
    observations,
    one_way,
    paired,
    some_queries,
)

from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import (
    MCNEMAR,
    STUDENT,
    Estimate,
    difference,
    estimate,
    pool_estimates,
    t_quantile_975,
)
from ttabench.stats.figures import MEAN, PROPORTION, Figure

REPEATS = 800
"""Of each design; docs/reference/coverage.md has more of both."""


def told(some: list[Observation], figure: Figure = MEAN) -> Estimate:
    found = estimate(some, figure)
    assert found.ci_low is not None
    assert found.ci_high is not None
    return found


def test_a_balanced_design_is_the_analysis_of_variance() -> None:
    """By hand: mean squares of rows 27/4, of columns 13/4, of what is left 7/12; variance (27/4 + 13/4 - 7/12) / 12."""
    values = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [4.0, 5.0, 6.0], [3.0, 3.0, 6.0]])
    found, variance = told(observations(values)), (27 / 4 + 13 / 4 - 7 / 12) / 12
    assert found.stderr == pytest.approx(variance**0.5, rel=1e-12)
    assert (found.mean, found.n, found.units) == (3.25, 12, 3)
    share = 13 / 4 / 12 / variance
    degrees_of_freedom = 1 / (share / 2 + (1 - share) / 3)
    assert found.ci_high == pytest.approx(
        3.25 + t_quantile_975(degrees_of_freedom) * variance**0.5, rel=1e-9
    )


def test_equal_answers_under_every_draw_are_those_of_so_many_questions() -> None:
    """`none` reads no demonstrations: three draws tell nothing new, and its error is not 0."""
    answers = np.arange(100) < 54
    some = observations(np.repeat(answers[:, None], 3, axis=1).astype(float))
    once = told(observations(answers[:, None].astype(float)))
    found = told(some, PROPORTION)
    assert found.stderr == pytest.approx(once.stderr)
    assert 100 * (found.stderr or 0.0) == pytest.approx(5.0, abs=0.02)
    own = [(found.mean, once.stderr, 100.0)] * 3
    assert pool_estimates(own, MEAN) == pytest.approx((0.54, once.stderr)), (
        "without the answers, too"
    )
    assert found.ci_low == pytest.approx(0.443, abs=2e-3)
    assert found.ci_high == pytest.approx(0.634, abs=2e-3)


def test_a_question_asked_at_several_steps_is_one() -> None:
    """MetaICL: eight sub-tasks, a row of each, after 1, 2, 4, 8 and 16 demonstrations of one draw."""
    right = (1, 1, 0, 1, 0, 1, 1, 0)
    some = [
        Observation("0", (float(value), 1.0), f"task {row}", crossed=f"q{row}", question=f"q{row}")
        for row, value in enumerate(right)
        for _ in range(5)
    ]
    found, rows = (
        told(some),
        told([Observation(str(row), (float(value), 1.0)) for row, value in enumerate(right)]),
    )
    assert (found.n, found.units, found.stderr) == (40, 8, pytest.approx(rows.stderr))
    none = [each._replace(terms=(0.0, 1.0)) for each in some]
    apart, by_row = difference(some, none), difference(some[::5], none[::5])
    assert (apart.test, apart.units) == (STUDENT, 8)
    assert (by_row.test, by_row.p) == (MCNEMAR, 0.0625), "five of eight rows, not 25 of 40"
    assert apart.p > 0.01
    assert estimate(some[:5]).stderr is None, "one question shows no error"  # type: ignore[union-attr]


def test_draws_with_questions_of_their_own_are_clustered_as_ever() -> None:
    """Nested designs: to the last digit what draws alone tell, or of documents in draws the larger of both."""
    generator = np.random.default_rng(3)
    values = generator.normal(size=(3, 20)) + generator.normal(size=(3, 1))
    nested = [
        Observation(str(d), (float(v), 1.0), crossed=f"{d} {i}", question=f"{d} {i}")
        for (d, i), v in np.ndenumerate(values)
    ]
    assert told(nested) == told(one_way(nested, 0))
    documents = [each._replace(cluster=each.crossed, crossed=each.cluster) for each in nested]
    errors = [told(one_way(documents, side)).stderr or 0.0 for side in (0, 1)]
    assert errors[0] < errors[1], "these draws differ"
    assert told(documents).stderr == pytest.approx(errors[1])
    assert told(documents).units == 60
    alike = [
        each._replace(terms=(each.terms[0] - values[int(each.crossed)].mean(), 1.0))
        for each in documents
    ]
    assert told(alike).stderr == pytest.approx(told(one_way(alike, 0)).stderr)


def test_draws_that_agree_by_luck_show_the_error_of_their_questions() -> None:
    right = [(0, 0, 1, 1), (0, 1, 0, 1), (1, 1, 0, 0)]
    nested = [
        Observation(str(d), (float(v), 1.0), crossed=f"{d} {i}", question=f"{d} {i}")
        for d, own in enumerate(right)
        for i, v in enumerate(own)
    ]
    assert told(nested).stderr == pytest.approx((0.25 / 11) ** 0.5)
    wrong = [each._replace(terms=(0.0, 1.0)) for each in nested]
    apart = difference(nested, wrong)
    assert apart.test == STUDENT, "queries of one draw are no independent ones"


DESIGNS = [
    (continuous, all_queries, 60, 3, (1, 0.1, 1)),
    (continuous, some_queries, 40, 5, (1, 0.2, 1)),
    (binary, all_queries, 20, 3, (1, 0.2, 1)),
    (binary, some_queries, 50, 3, (1, 0.2, 1)),
    (paired, all_queries, 20, 5, (1, 0.3, 1)),
    (paired, some_queries, 60, 5, (1, 0.5, 0.5)),
]


@pytest.mark.parametrize(("kind", "asking", "questions", "draws", "spreads"), DESIGNS)
def test_intervals_of_crossed_designs_hold_the_truth(
    kind: Kind, asking: Asking, questions: int, draws: int, spreads: tuple[float, float, float]
) -> None:
    both, of_draws, of_questions = coverage(kind, asking, (questions, draws), spreads, REPEATS)
    assert 0.93 <= both <= 0.97
    assert min(of_draws, of_questions) < 0.93, "one of both alone is too narrow here"
