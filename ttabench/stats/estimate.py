"""Estimates: a figure with its standard error and 95 % interval, and the difference of two figures.

    values = [Observation("a", (1.0, 1)), Observation("a", (0.0, 1)), Observation("b", (1.0, 1))]
    estimate(values)                    mean 0.667
    difference(left, right)             paired by query
    mcnemar(12, 3)                      0.0352: of 15 queries that changed, 12 improved
    holm([0.01, 0.04, None])            [0.02, 0.04, None]

A figure is a function of summed terms (figures.py): a mean, a ratio, a perplexity, macro-F1. The
sampling units are clusters: queries about one document, or after one draw of demonstrations, are
correlated. If the same questions are asked under several draws, both vary. The standard error is
that of the sum of influence values (of a ratio r: (a_c - r b_c) / sum b), which is the delta
method; see `clusters`. Intervals use Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import sub
from typing import TYPE_CHECKING

from ttabench.core.deprecation import renamed
from ttabench.stats.clusters import Observation, VarianceEstimate, estimate_variance
from ttabench.stats.figures import MAX_LOG, MEAN, PROPORTION, Figure

SIGNIFICANCE_LEVEL = 0.05
"""A difference with a p below it is significant."""
NORMAL_QUANTILE_975 = 1.959963984540054
MCNEMAR, STUDENT, SIGN = "McNemar's exact test", "Student's t", "sign test"
STRATIFIED = f"{STUDENT} over tasks"
ROUNDING_TOLERANCE = 1e-12
"""Errors below this share of a figure are rounding errors."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its standard error and 95 % interval (`None` for a single observation)."""

    mean: float
    n: int
    units: int
    """Number of clusters, or of questions if every stratum has one cluster."""
    stderr: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    weight: float
    """Weight of the figure's mean: queries, tokens, words or texts."""


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The difference of two figures with its 95 % interval and two-sided p (`None` for a single
    unit)."""

    value: float
    units: int
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    stderr: float | None = None
    degrees_of_freedom: float | None = None
    """Degrees of freedom of the test; `None` for tests without them."""
    test: str = ""
    """The test of p: McNemar's exact test for single queries, or Student's t over sampling units.

    If all units differ by the same amount, it is the exact sign test. Empty if there is no test.
    """
    crossed: int = 0
    """Number of units of the second source of variance; see `clusters.VarianceEstimate`."""


def estimate(values: Sequence[Observation], figure: Figure = MEAN) -> Estimate | None:
    """Estimate the figure of at least one value.

    `None` if the figure is not a number: no word begins, one word has all tokens, or a
    log-probability is not finite. The interval of a proportion of right (1) and wrong (0) answers
    is Wilson's (1927), with the number of trials that would give this error (Korn and Graubard
    1998).
    """
    observations, n = figure.to_observations(values), len(values)
    if observations is None:
        return None
    sums = _sums(observations)
    inner, value = figure.inner(sums), _figure(sums, figure)
    if inner is None or value is None:
        return None
    weight = sums[-1] if figure.is_weighted else float(len(observations))
    influence = figure.influence(sums)
    variance_estimate = estimate_variance(
        observations, [influence(one.terms) for one in observations], _weights(observations, figure)
    )
    if variance_estimate is None:
        return Estimate(mean=value, n=n, units=1, weight=weight)
    if figure == PROPORTION and {one.terms for one in observations} <= {(0, 1), (1, 1)}:
        low, high = _wilson_of_clusters(inner, variance_estimate, len(observations))
    else:
        half = t_quantile_975(variance_estimate.degrees_of_freedom) * variance_estimate.stderr
        low, high = max(figure.least, inner - half), min(figure.most, inner + half)
    error = figure.slope(value) * variance_estimate.stderr
    return Estimate(
        mean=value,
        n=n,
        units=variance_estimate.units,
        stderr=error,
        ci_low=figure.from_inner(low),
        ci_high=figure.from_inner(high),
        weight=weight,
    )


def difference(
    left: Sequence[Observation], right: Sequence[Observation], figure: Figure = MEAN
) -> PairedDifference | None:
    """Estimate left minus right, for the same queries in the same order.

    `None` if a figure is not a number, see `estimate`.
    """
    assert len(left) == len(right), f"{len(left)} and {len(right)} values are not pairs"
    left_terms, right_terms = map(figure.to_observations, (left, right))
    if left_terms is None or right_terms is None:
        return None
    left, right = left_terms, right_terms
    left_sums, right_sums = _sums(left), _sums(right)
    left_value, right_value = _figure(left_sums, figure), _figure(right_sums, figure)
    if left_value is None or right_value is None:
        return None
    value, sides = left_value - right_value, (*left, *right)
    mean = figure.inner is MEAN.inner and not figure.exponential
    is_plain_mean = mean and all(observation.terms[1] == 1 for observation in sides)
    if is_plain_mean:  # avoids rounding errors
        value = math.fsum(a.terms[0] - b.terms[0] for a, b in zip(left, right, strict=True)) / len(
            left
        )
    influence_values = map(
        sub,
        _influence_values(left, left_sums, left_value, figure),
        _influence_values(right, right_sums, right_value, figure),
    )
    variance_estimate = estimate_variance(left, list(influence_values), _weights(left, figure))
    if variance_estimate is None:
        return PairedDifference(value=value, units=1)
    is_binary = is_plain_mean and {observation.terms[0] for observation in sides} <= {0, 1}
    if is_binary and variance_estimate.is_independent:
        return _binary_difference(
            value, [round(a.terms[0] - b.terms[0]) for a, b in zip(left, right, strict=True)]
        )
    # all units agree, so the variance cannot be estimated
    if variance_estimate.stderr <= ROUNDING_TOLERANCE * max(1.0, abs(value)):
        n_agreeing = min(
            variance_estimate.units, variance_estimate.crossed or variance_estimate.units
        )
        if abs(value) <= ROUNDING_TOLERANCE:
            return PairedDifference(value=value, units=variance_estimate.units, p=1.0)
        p = min(1.0, 2.0 ** (1 - n_agreeing))
        return PairedDifference(value=value, units=variance_estimate.units, p=p, test=SIGN)
    most, half = (
        1.0 if is_binary else figure.span,
        t_quantile_975(variance_estimate.degrees_of_freedom) * variance_estimate.stderr,
    )
    low, high = (max(-most, min(most, value + end)) for end in (-half, half))
    p = two_sided_p(value / variance_estimate.stderr, variance_estimate.degrees_of_freedom)
    return PairedDifference(
        value=value,
        units=variance_estimate.units,
        ci_low=low,
        ci_high=high,
        p=p,
        stderr=variance_estimate.stderr,
        degrees_of_freedom=variance_estimate.degrees_of_freedom,
        test=STUDENT,
        crossed=variance_estimate.crossed,
    )


def _binary_difference(value: float, signs: Sequence[int]) -> PairedDifference:
    """Difference of paired right and wrong answers that are independent.

    The interval of Bonett and Price (2012) is valid in small samples and within -1 and 1. The test
    is McNemar's exact test.
    """
    n, won, lost = len(signs), signs.count(1), signs.count(-1)
    up, down = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    error = math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    low, high = (
        max(-1.0, up - down - NORMAL_QUANTILE_975 * error),
        min(1.0, up - down + NORMAL_QUANTILE_975 * error),
    )
    p = mcnemar(won, lost)
    return PairedDifference(
        value=value, units=n, ci_low=low, ci_high=high, p=p, stderr=error, test=MCNEMAR
    )


def _sums(observations: Sequence[Observation]) -> tuple[float, ...]:
    return tuple(
        math.fsum(one.terms[place] for one in observations)
        for place in range(len(observations[0].terms))
    )


def _figure(sums: tuple[float, ...], figure: Figure) -> float | None:
    """The figure alone; `None` if it is not a number."""
    inner = figure.inner(sums)
    if inner is None or (figure.exponential and inner > MAX_LOG):
        return None
    return figure.from_inner(inner)


def _influence_values(
    observations: Sequence[Observation], sums: tuple[float, ...], value: float, figure: Figure
) -> list[float]:
    """Influence of each observation on the figure."""
    influence, slope = figure.influence(sums), figure.slope(value)
    return [slope * influence(one.terms) for one in observations]


def _weights(observations: Sequence[Observation], figure: Figure) -> list[float]:
    return [one.terms[-1] if figure.is_weighted else 1.0 for one in observations]


@cache
def t_quantile_975(degrees_of_freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.975))


def two_sided_p(t: float, degrees_of_freedom: float) -> float:
    """Return the two-sided p of Student's t."""
    from scipy.special import stdtr

    return 2 * float(stdtr(degrees_of_freedom, -abs(t)))


def _wilson_of_clusters(
    proportion: float, variance_estimate: VarianceEstimate, n: int
) -> tuple[float, float]:
    """Wilson's interval with the number of trials that would give this error, at most n."""
    if variance_estimate.is_independent:
        return wilson(proportion, n)
    trials = variance_estimate.effective_units
    if 0 < proportion < 1:
        trials = (
            min(
                n,
                proportion * (1 - proportion) / variance_estimate.stderr**2 * trials / (trials - 1),
            )
            if variance_estimate.stderr
            else n
        )
    return wilson(proportion, trials, t_quantile_975(variance_estimate.degrees_of_freedom))


def wilson(
    proportion: float, n: float, quantile: float = NORMAL_QUANTILE_975
) -> tuple[float, float]:
    """Compute Wilson's interval of a proportion of n independent trials."""
    square = quantile**2
    centre = (proportion + square / (2 * n)) / (1 + square / n)
    half = (
        quantile
        / (1 + square / n)
        * math.sqrt(proportion * (1 - proportion) / n + square / (4 * n * n))
    )
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return 0.0 if proportion == 0 else low, 1.0 if proportion == 1 else high


def interval_of_mean(
    parts: Sequence[tuple[float, float | None, float | None]],
) -> tuple[float | None, float | None]:
    """Compute the 95 % interval of the mean of independent figures (MOVER, Zou and Donner 2008).

    `parts` are (figure, lower end, upper end). (None, None) if one of them has no interval. If all
    intervals are within 0 and 1, the result is, too.
    """
    below = [value - low for value, low, _ in parts if low is not None]
    above = [high - value for value, _, high in parts if high is not None]
    if min(len(below), len(above)) < len(parts):
        return None, None
    mean, n = math.fsum(value for value, _, _ in parts) / len(parts), len(parts)
    return mean - math.hypot(*below) / n, mean + math.hypot(*above) / n


def stratified_mean(
    parts: Sequence[tuple[str, PairedDifference]], most: float = math.inf
) -> PairedDifference:
    """Average at least one difference, each with its task.

    There is no interval and no p if no part has a standard error. With d_b the difference on part b
    of B parts, the mean is sum_b d_b / B. Tasks are independent strata (Cochran 1977, section 5.4),
    so the variance is the sum over tasks of (sum_{b of the task} s_b / B)^2. Parts of one task
    (lengths, shots) may ask the same questions, so their errors are treated as fully correlated,
    which never underestimates the variance. Degrees of freedom combine those of the tasks
    (Satterthwaite 1946). The result describes only these tasks, not a population of tasks. The
    interval stays within `most`, the largest possible difference.
    """
    value, units = (
        math.fsum(part.value for _, part in parts) / len(parts),
        sum(part.units for _, part in parts),
    )
    strata: dict[str, list[PairedDifference]] = {}
    for task, part in parts:
        strata.setdefault(task, []).append(part)
    variances = [
        ((math.fsum(part.stderr or 0.0 for part in members) / len(parts)) ** 2, members)
        for members in strata.values()
    ]
    variance = math.fsum(each for each, _ in variances)
    if variance <= 0:
        return PairedDifference(value=value, units=units)
    degrees = [
        (each, min(known))
        for each, members in variances
        if each > 0
        and (
            known := [
                part.degrees_of_freedom for part in members if part.degrees_of_freedom is not None
            ]
        )
    ]
    degrees_of_freedom = (
        variance**2 / math.fsum(each**2 / df for each, df in degrees) if degrees else math.inf
    )
    error = math.sqrt(variance)
    low, high = (
        max(-most, min(most, value + sign * t_quantile_975(degrees_of_freedom) * error))
        for sign in (-1, 1)
    )
    return PairedDifference(
        value=value,
        units=units,
        ci_low=low,
        ci_high=high,
        p=two_sided_p(value / error, degrees_of_freedom),
        stderr=error,
        degrees_of_freedom=degrees_of_freedom,
        test=STRATIFIED,
        crossed=sum(part.crossed for _, part in parts),
    )


def pool_estimates(
    figures: Sequence[tuple[float, float | None, float]], figure: Figure
) -> tuple[float, float | None]:
    """Pool the figures of runs that differ in their seed, if their per-query terms are not stored.

    `figures` are (value, standard error, weight) of each run. The value is that of all queries
    aggregated at once. The error combines the error between runs and the mean error within runs. It
    is too wide, because part of it is in both, and runs may ask the same questions. `None` if
    neither is known.
    """
    runs = [
        (math.log(value) if figure.exponential else value, weight) for value, _, weight in figures
    ]
    total = sum(weight for _, weight in runs)
    value = figure.from_inner(sum(inner * weight for inner, weight in runs) / total)
    terms = [
        Observation(str(place), (inner * weight, weight))
        for place, (inner, weight) in enumerate(runs)
    ]
    between_runs = estimate(terms, replace(figure, to_observations=list))
    errors = [between_runs.stderr] if between_runs and between_runs.stderr is not None else []
    if all(error is not None for _, error, _ in figures):
        inner_errors = (
            weight * (error or 0.0) / figure.slope(each) / total for each, error, weight in figures
        )
        errors.append(figure.slope(value) * sum(inner_errors))
    return value, math.hypot(*errors) if errors else None


def mcnemar(won: int, lost: int) -> float:
    """Compute the two-sided exact p of paired right and wrong answers (McNemar 1947).

    `won` and `lost` count the queries that changed.
    """
    from scipy.special import bdtr

    changed = won + lost
    return min(1.0, 2 * float(bdtr(min(won, lost), changed, 0.5))) if changed else 1.0


def holm(p_values: Sequence[float | None], family: int = 0) -> list[float | None]:
    """Adjust p values to control the family-wise error rate (Holm 1979).

    `None` is the p of a test that was not made; it does not count. `family` is the number of tests
    from which these were selected by their results. The other tests count as if they had the
    largest p, which never underestimates p.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest, family = 0.0, max(family, len(order))
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[place] = largest
    return adjusted


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Apart": "PairedDifference"})
