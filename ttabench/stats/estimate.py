"""THE statistics: one figure with its standard error and 95 % interval, and the difference of two.

    estimate([Observed("doc1", (1.0, 1)), Observed("doc1", (0.0, 1)), Observed("doc2", (1.0, 1))])      mean 0.667
    difference(left, right)                                                      paired by what varies
    mcnemar(12, 3)                      0.0352: of 15 queries that changed, 12 changed for the better
    holm([0.01, 0.04, None])            [0.02, 0.04, None]

A figure is a function of summed terms (figures.py): a mean, a ratio, a perplexity, macro-F1. What varies are clusters:
queries about one document, or asked after one draw of demonstrations, resemble each other, and another document or draw
is what the next reader meets. Where the same questions are asked under several draws, both vary. With the pulls of
queries (of a ratio r: (a_c - r b_c) / sum b) the error is that of their sum: the delta method; see `clusters`.
Intervals take Student's t.
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
"""Below it a difference is called beyond chance."""
NORMAL_QUANTILE_975 = 1.959963984540054
MCNEMAR, STUDENT, SIGN = "McNemar's exact test", "Student's t", "sign test"
STRATIFIED = f"{STUDENT} over tasks"
ROUNDING_TOLERANCE = 1e-12
"""Errors below this share of a figure are those of floats."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its standard error and 95 % interval (None where a single observation shows none)."""

    mean: float
    n: int
    units: int
    """Clusters, or questions where every stratum has one cluster."""
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    weight: float
    """Weight of the figure's mean: queries, tokens, words or texts."""


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The difference of two figures with its 95 % interval and two-sided p (None where a single one shows none)."""

    value: float
    units: int
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    stderr: float | None = None
    degrees_of_freedom: float | None = None
    """Degrees of freedom of the test; None where it has none."""
    test: str = ""
    """The test that p is of: the exact one of single queries, Student's t over what varies, or where all that varies
    differs alike the exact test that as many coins fall alike; empty where there is none."""
    crossed: int = 0
    """How many of what else varies, where two things are crossed; see `clusters.VarianceEstimate`."""


def estimate(values: Sequence[Observation], figure: Figure = MEAN) -> Estimate | None:
    """The figure of at least one value; None where it is no number: where no word begins, one word has all tokens, or a
    log-probability is not finite.

    The interval of a share of right (1) and wrong (0) answers is Wilson's (1927), with as many trials as would give
    this error (Korn and Graubard 1998).
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
        return Estimate(
            mean=value, n=n, units=1, stderr=None, ci_low=None, ci_high=None, weight=weight
        )
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
    """Left less right, of the same queries in the same order; None where a figure is no number, see `estimate`."""
    assert len(left) == len(right), f"{len(left)} and {len(right)} values are no pairs"
    left_terms, right_terms = map(figure.to_observations, (left, right))
    if left_terms is None or right_terms is None:
        return None
    left, right = left_terms, right_terms
    ours, theirs = _sums(left), _sums(right)
    one, other = _figure(ours, figure), _figure(theirs, figure)
    if one is None or other is None:
        return None
    value, sides = one - other, (*left, *right)
    mean = figure.inner is MEAN.inner and not figure.exponential
    is_plain_mean = mean and all(observation.terms[1] == 1 for observation in sides)
    if is_plain_mean:  # exact where values are
        value = math.fsum(a.terms[0] - b.terms[0] for a, b in zip(left, right, strict=True)) / len(
            left
        )
    influence_values = map(
        sub,
        _influence_values(left, ours, one, figure),
        _influence_values(right, theirs, other, figure),
    )
    variance_estimate = estimate_variance(left, list(influence_values), _weights(left, figure))
    if variance_estimate is None:
        return PairedDifference(value=value, units=1)
    is_binary = is_plain_mean and {observation.terms[0] for observation in sides} <= {0, 1}
    if is_binary and variance_estimate.is_independent:
        return _binary_difference(
            value, [round(a.terms[0] - b.terms[0]) for a, b in zip(left, right, strict=True)]
        )
    if variance_estimate.stderr <= ROUNDING_TOLERANCE * max(
        1.0, abs(value)
    ):  # all units agree: nothing tells how far another would differ
        n_agreeing = min(
            variance_estimate.units, variance_estimate.crossed or variance_estimate.units
        )
        if abs(value) <= ROUNDING_TOLERANCE:
            return PairedDifference(value=value, units=variance_estimate.units, p=1.0)
        p = min(1.0, 2.0 ** (1 - n_agreeing))  # that as many coins fall alike
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
    """Of paired right and wrong answers that are independent: the interval of Bonett and Price (2012), which holds in
    small samples and stays within -1 and 1, and the exact test of McNemar."""
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
    assert observations, "nothing observed"
    return tuple(map(math.fsum, zip(*[one.terms for one in observations], strict=True)))


def _figure(sums: tuple[float, ...], figure: Figure) -> float | None:
    """The figure alone; None where it is no number."""
    inner = figure.inner(sums)
    if inner is None or (figure.exponential and inner > MAX_LOG):
        return None
    return figure.from_inner(inner)


def _influence_values(
    observations: Sequence[Observation], sums: tuple[float, ...], value: float, figure: Figure
) -> list[float]:
    """How far each observation pulls the figure away from where it is."""
    influence, slope = figure.influence(sums), figure.slope(value)
    return [slope * influence(one.terms) for one in observations]


def _weights(observations: Sequence[Observation], figure: Figure) -> list[float]:
    """The weights of the figure's mean."""
    return [one.terms[-1] if figure.is_weighted else 1.0 for one in observations]


@cache
def t_quantile_975(degrees_of_freedom: float) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.975))


def two_sided_p(t: float, degrees_of_freedom: float) -> float:
    """The p of Student's t."""
    from scipy.special import stdtr

    return 2 * float(stdtr(degrees_of_freedom, -abs(t)))


def _wilson_of_clusters(
    proportion: float, variance_estimate: VarianceEstimate, n: int
) -> tuple[float, float]:
    """Wilson's, with as many trials as would give this error, and no more than there are observations."""
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
    """The interval of a share of n independent trials: the shares whose test does not reject this one."""
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
    """The 95 % interval of the mean of independent figures, from (figure, lower end, upper end) of each; None where one
    has none (MOVER, Zou and Donner 2008). Of intervals within 0 and 1 it stays there."""
    below = [value - low for value, low, _ in parts if low is not None]
    above = [high - value for value, _, high in parts if high is not None]
    if min(len(below), len(above)) < len(parts):
        return None, None
    mean, n = math.fsum(value for value, _, _ in parts) / len(parts), len(parts)
    return mean - math.hypot(*below) / n, mean + math.hypot(*above) / n


def stratified_mean(
    parts: Sequence[tuple[str, PairedDifference]], most: float = math.inf
) -> PairedDifference:
    """The mean of at least one difference, each with its task; no interval and no p where none of them shows an error.

    With d_b the difference on part b of B parts, the mean is sum_b d_b / B. Tasks are independent strata (Cochran 1977,
    section 5.4), so its variance is the sum over tasks of (sum_{b of the task} s_b / B)^2: parts of one task (lengths,
    shots) may ask the same questions, and are taken to err together, which is never too small. Degrees of freedom are
    those of Satterthwaite (1946) from the tasks' own. It speaks of these tasks: no other task is drawn. The interval
    stays within `most`, the farthest that two figures can lie apart.
    """
    value, units = (
        math.fsum(part.value for _, part in parts) / len(parts),
        sum(part.units for _, part in parts),
    )
    strata: dict[str, list[PairedDifference]] = {}
    for task, part in parts:
        strata.setdefault(task, []).append(part)
    variances = [
        ((math.fsum(part.stderr or 0.0 for part in own) / len(parts)) ** 2, own)
        for own in strata.values()
    ]
    variance = math.fsum(each for each, _ in variances)
    if variance <= 0:
        return PairedDifference(value=value, units=units)
    degrees = [
        (each, min(known))
        for each, own in variances
        if each > 0
        and (
            known := [
                part.degrees_of_freedom for part in own if part.degrees_of_freedom is not None
            ]
        )
    ]
    degrees_of_freedom = (
        variance**2 / math.fsum(each**2 / own for each, own in degrees) if degrees else math.inf
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
    """One figure from those of runs that differ in their seed, where what their queries add is not kept; of each run
    (value, standard error, weight).

    The value is that of all their queries aggregated at once. Its error is that of runs and, on top, the mean of their
    own: too wide, for part of it is in both, and runs may ask the same. None where neither is known.
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
    of_runs = estimate(terms, replace(figure, to_observations=list))
    errors = [of_runs.stderr] if of_runs and of_runs.stderr is not None else []
    if all(error is not None for _, error, _ in figures):
        own = (
            weight * (error or 0.0) / figure.slope(each) / total for each, error, weight in figures
        )
        errors.append(figure.slope(value) * sum(own))
    return value, math.hypot(*errors) if errors else None


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of paired right and wrong answers (McNemar 1947): a fair coin for every query that changed."""
    from scipy.special import bdtr

    changed = won + lost
    return min(1.0, 2 * float(bdtr(min(won, lost), changed, 0.5))) if changed else 1.0


def holm(p_values: Sequence[float | None], family: int = 0) -> list[float | None]:
    """p values adjusted so that one false alarm among all of them is as rare as each alone (Holm 1979). None is the p
    of a test that was not made, which does not count. Of a `family` of more tests, among which those were chosen by
    what was found, the others count as if they had the largest p: never too small whatever the choice."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest, family = 0.0, max(family, len(order))
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[place] = largest
    return adjusted


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Apart": "PairedDifference"})
