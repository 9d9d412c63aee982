"""Figures that are ratios of sums: perplexities, their errors, and how runs are pooled and compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import Estimate, estimate, interval_of_mean, pool_estimates, wilson
from ttabench.stats.figures import MEAN, PROPORTION, RATIO_FIGURES


def aggregate(values: list[float]) -> Estimate:
    """Of independent values."""
    observations = [Observation(str(place), (value, 1.0)) for place, value in enumerate(values)]
    found = estimate(observations, PROPORTION if set(values) <= {0, 1} else MEAN)
    assert found is not None
    return found


def stretch(text: str, nll: float, tokens: int, words: int) -> Observation:
    return Observation(text, (nll, tokens, words))


PLAIN = [stretch("a", 4.0, 2, 1), stretch("a", 6.0, 1, 1), stretch("b", 1.0, 3, 2)]


def figure(name: str, of: list[Observation]) -> float:
    found = estimate(of, RATIO_FIGURES[name])
    return found.mean


def test_figures_are_as_defined() -> None:
    assert figure("ppl", PLAIN) == pytest.approx(math.exp(11 / 6))
    unit_mean = (2 * math.exp(2) + math.exp(6) + 3 * math.exp(1 / 3)) / 6
    assert figure("ppl_unit_mean", PLAIN) == pytest.approx(unit_mean)
    assert figure("ppl_book_mean", PLAIN) == pytest.approx((math.exp(10 / 3) + math.exp(1 / 3)) / 2)
    assert figure("ppl_word", PLAIN) == pytest.approx(math.exp(11 / 4))


@pytest.mark.parametrize("name", RATIO_FIGURES)
@pytest.mark.parametrize("mean", [math.nan, math.inf, 1e6, 800.0, 500.0, 299.0])
def test_no_figure_is_stored_that_is_no_number(name: str, mean: float) -> None:
    """A figure is finite with its error and interval, or there is none; nothing overflows on the way."""
    some = [
        stretch("a", 1.0, 1, 1),
        stretch("b", mean * 3, 3, 3),
        stretch("b", 2.0, 1, 1),
        stretch("c", 1.0, 1, 1),
    ]
    for of in (some, some[:3], some[1:2]):
        found = estimate(of, RATIO_FIGURES[name])
        whole = math.fsum(one.terms[0] for one in of) / sum(one.terms[1] for one in of)
        assert found is not None or not max(whole, mean) < 300
        if found is not None:
            figures = (found.mean, found.stderr, found.ci_low, found.ci_high)
            assert all(each is None or math.isfinite(each) for each in figures)
            assert math.isfinite(mean)
    if not math.isfinite(mean):
        assert RATIO_FIGURES[name].to_observations(some) is None


def test_the_error_is_between_texts_where_there_are_several() -> None:
    """Strides of a text that are all alike say nothing new: the error is that of two texts, not of twenty strides."""
    twice = [
        stretch(text, value, 1, 0) for text, value in (("a", 1.0), ("b", 2.0)) for _ in range(10)
    ]
    of_two = estimate([stretch("a", 10.0, 10, 0), stretch("b", 20.0, 10, 0)], RATIO_FIGURES["ppl"])
    found = estimate(twice, RATIO_FIGURES["ppl"])
    assert found.stderr == pytest.approx(of_two.stderr)
    assert found.n == 20
    alone = estimate(twice[:10], RATIO_FIGURES["ppl_book_mean"])
    assert alone.stderr is None
    of_one = estimate(twice[:10], RATIO_FIGURES["ppl"])
    assert (found.units, of_one.units) == (2, 10)


@pytest.mark.parametrize("name", ["ppl", "ppl_unit_mean", "ppl_book_mean"])
def test_the_value_of_pooled_runs_is_as_if_aggregated_at_once(name: str) -> None:
    runs = [
        [stretch(f"{run} {u.cluster}", u.terms[0] + run, *u.terms[1:]) for u in PLAIN]
        for run in range(3)
    ]
    parts = [estimate(run, RATIO_FIGURES[name]) for run in runs]
    value, _ = pool_estimates(
        [(part.mean, part.stderr, part.weight) for part in parts if part], RATIO_FIGURES[name]
    )
    assert value == pytest.approx(figure(name, [unit for run in runs for unit in run]))


def test_runs_without_answers_have_the_error_of_runs_and_their_own() -> None:
    same = pool_estimates([(0.5, 0.01, 10), (0.7, 0.03, 10), (0.9, 0.02, 10)], MEAN)
    assert same == pytest.approx((0.7, math.hypot(0.2 / 3**0.5, 0.02)))
    assert pool_estimates([(0.5, 0.01, 10)], MEAN)[1] == pytest.approx(0.01)
    assert pool_estimates([(0.5, 0.1, 10)] * 4, MEAN)[1] == pytest.approx(0.1), (
        "runs that agree by luck"
    )


def clusters(
    generator: np.random.Generator, count: int, size: int, *, shares: bool
) -> list[Observation]:
    """Queries of clusters whose own means lie 0.2 apart around 0.6."""
    found = []
    for index, mean in enumerate(np.clip(generator.normal(0.6, 0.2, count), 0.0, 1.0)):
        values = generator.random(size) < mean if shares else generator.normal(mean, 0.5, size)
        found += [Observation(str(index), (float(value), 1.0)) for value in values]
    return found


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("count", "size"), [(3, 50), (6, 20), (40, 4)])
def test_intervals_of_clustered_data_hold_the_truth_as_often_as_they_say(
    count: int, size: int, shares: bool
) -> None:
    generator, draws = np.random.default_rng(5), 3000
    truth = float(np.clip(generator.normal(0.6, 0.2, 1_000_000), 0.0, 1.0).mean())
    held = naive = 0
    for _ in range(draws):
        observations = clusters(generator, count, size, shares=shares)
        found = estimate(observations, PROPORTION if shares else MEAN)
        alone = aggregate([each.terms[0] for each in observations])
        for told, name in ((found, "clusters"), (alone, "queries")):
            assert told.ci_high is not None
            inside = told.ci_low <= truth <= told.ci_high
            held, naive = (
                held + (inside and name == "clusters"),
                naive + (inside and name == "queries"),
            )
    assert 0.93 <= held / draws <= 0.97
    assert naive / draws < 0.92, "queries of one cluster are no independent queries"


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 30, 0.0059, 0.1667)],
)
def test_intervals_of_shares_are_wilsons(right: int, n: int, low: float, high: float) -> None:
    """Brown, Cai, DasGupta 2001; the ends to four digits by scipy's binomtest(k, n).proportion_ci(method="wilson")."""
    found = aggregate([1.0] * right + [0.0] * (n - right))
    assert (found.ci_low, found.ci_high) == pytest.approx((low, high), abs=6e-5)
    assert found.stderr == pytest.approx(math.sqrt(right / n * (1 - right / n) / (n - 1)))


def test_the_interval_of_a_mean_of_parts() -> None:
    alike = [(0.5, 0.4, 0.6), (0.7, 0.5, 0.9)]
    assert interval_of_mean(alike) == pytest.approx(
        (0.6 - math.hypot(0.1, 0.2) / 2, 0.6 + math.hypot(0.1, 0.2) / 2)
    )
    whole = [(1.0, *wilson(1.0, 5)), (1.0, *wilson(1.0, 8))]
    low, high = interval_of_mean(whole)
    assert high == 1
    assert 0.6 < low < 1
    assert interval_of_mean([*alike, (1.0, None, None)]) == (None, None)
