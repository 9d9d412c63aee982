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

from ttabench.stats.clusters import Observed, Spread, spread
from ttabench.stats.figures import LARGEST_LOG, MEAN, SHARE, Figure

LEVEL = 0.05
"""Below it a difference is called beyond chance."""
NORMAL_95 = 1.959963984540054
MCNEMAR, STUDENT, SIGN = "McNemar's exact test", "Student's t", "sign test"
STRATIFIED = f"{STUDENT} over tasks"
ROUNDING = 1e-12
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
class Apart:
    """The difference of two figures with its 95 % interval and two-sided p (None where a single one shows none)."""

    value: float
    units: int
    ci_low: float | None = None
    ci_high: float | None = None
    p: float | None = None
    stderr: float | None = None
    freedom: float | None = None
    """Degrees of freedom of the test; None where it has none."""
    test: str = ""
    """The test that p is of: the exact one of single queries, Student's t over what varies, or where all that varies
    differs alike the exact test that as many coins fall alike; empty where there is none."""
    across: int = 0
    """How many of what else varies, where two things are crossed; see `clusters.Spread`."""


def estimate(values: Sequence[Observed], figure: Figure = MEAN) -> Estimate | None:
    """The figure of at least one value; None where it is no number: where no word begins, one word has all tokens, or a
    log-probability is not finite.

    The interval of a share of right (1) and wrong (0) answers is Wilson's (1927), with as many trials as would give
    this error (Korn and Graubard 1998).
    """
    observed, n = figure.observed(values), len(values)
    if observed is None:
        return None
    sums = _sums(observed)
    inner, value = figure.inner(sums), _figure(sums, figure)
    if inner is None or value is None:
        return None
    weight = sums[-1] if figure.weighs else float(len(observed))
    pull = figure.pull(sums)
    scatter = spread(observed, [pull(one.terms) for one in observed], _weights(observed, figure))
    if scatter is None:
        return Estimate(mean=value, n=n, units=1, stderr=None, ci_low=None, ci_high=None, weight=weight)
    if figure == SHARE and {one.terms for one in observed} <= {(0, 1), (1, 1)}:
        low, high = _share(inner, scatter, len(observed))
    else:
        half = student(scatter.freedom) * scatter.error
        low, high = max(figure.least, inner - half), min(figure.most, inner + half)
    error = figure.slope(value) * scatter.error
    return Estimate(mean=value, n=n, units=scatter.units, stderr=error, ci_low=figure.finish(low),
                    ci_high=figure.finish(high), weight=weight)  # fmt: skip


def difference(left: Sequence[Observed], right: Sequence[Observed], figure: Figure = MEAN) -> Apart | None:
    """Left less right, of the same queries in the same order; None where a figure is no number, see `estimate`."""
    assert len(left) == len(right), f"{len(left)} and {len(right)} values are no pairs"
    left_terms, right_terms = map(figure.observed, (left, right))
    if left_terms is None or right_terms is None:
        return None
    left, right = left_terms, right_terms
    ours, theirs = _sums(left), _sums(right)
    one, other = _figure(ours, figure), _figure(theirs, figure)
    if one is None or other is None:
        return None
    value, sides = one - other, (*left, *right)
    mean = figure.inner is MEAN.inner and not figure.exponential
    plain = mean and all(observation.terms[1] == 1 for observation in sides)
    if plain:  # exact where values are
        value = math.fsum(a.terms[0] - b.terms[0] for a, b in zip(left, right, strict=True)) / len(left)
    pulls = map(sub, _pulls(left, ours, one, figure), _pulls(right, theirs, other, figure))
    scatter = spread(left, list(pulls), _weights(left, figure))
    if scatter is None:
        return Apart(value=value, units=1)
    shares = plain and {observation.terms[0] for observation in sides} <= {0, 1}
    if shares and scatter.independent:
        return _of_shares(value, [round(a.terms[0] - b.terms[0]) for a, b in zip(left, right, strict=True)])
    if scatter.error <= ROUNDING * max(1.0, abs(value)):  # all units agree: nothing tells how far another would differ
        alike = min(scatter.units, scatter.across or scatter.units)
        if abs(value) <= ROUNDING:
            return Apart(value=value, units=scatter.units, p=1.0)
        p = min(1.0, 2.0 ** (1 - alike))  # that as many coins fall alike
        return Apart(value=value, units=scatter.units, p=p, test=SIGN)
    most, half = 1.0 if shares else figure.span, student(scatter.freedom) * scatter.error
    low, high = (max(-most, min(most, value + end)) for end in (-half, half))
    p = two_sided(value / scatter.error, scatter.freedom)
    return Apart(value=value, units=scatter.units, ci_low=low, ci_high=high, p=p, stderr=scatter.error,
                 freedom=scatter.freedom, test=STUDENT, across=scatter.across)  # fmt: skip


def _of_shares(value: float, signs: Sequence[int]) -> Apart:
    """Of paired right and wrong answers that are independent: the interval of Bonett and Price (2012), which holds in
    small samples and stays within -1 and 1, and the exact test of McNemar."""
    n, won, lost = len(signs), signs.count(1), signs.count(-1)
    up, down = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    error = math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    low, high = max(-1.0, up - down - NORMAL_95 * error), min(1.0, up - down + NORMAL_95 * error)
    p = mcnemar(won, lost)
    return Apart(value=value, units=n, ci_low=low, ci_high=high, p=p, stderr=error, test=MCNEMAR)


def _sums(observed: Sequence[Observed]) -> tuple[float, ...]:
    assert observed, "nothing observed"
    return tuple(map(math.fsum, zip(*[one.terms for one in observed], strict=True)))


def _figure(sums: tuple[float, ...], figure: Figure) -> float | None:
    """The figure alone; None where it is no number."""
    inner = figure.inner(sums)
    if inner is None or (figure.exponential and inner > LARGEST_LOG):
        return None
    return figure.finish(inner)


def _pulls(observed: Sequence[Observed], sums: tuple[float, ...], value: float, figure: Figure) -> list[float]:
    """How far each observation pulls the figure away from where it is."""
    pull, slope = figure.pull(sums), figure.slope(value)
    return [slope * pull(one.terms) for one in observed]


def _weights(observed: Sequence[Observed], figure: Figure) -> list[float]:
    """The weights of the figure's mean."""
    return [one.terms[-1] if figure.weighs else 1.0 for one in observed]


@cache
def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def two_sided(t: float, freedom: float) -> float:
    """The p of Student's t."""
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(t)))


def _share(share: float, scatter: Spread, n: int) -> tuple[float, float]:
    """Wilson's, with as many trials as would give this error, and no more than there are observations."""
    if scatter.independent:
        return wilson(share, n)
    trials = scatter.trials
    if 0 < share < 1:
        trials = min(n, share * (1 - share) / scatter.error**2 * trials / (trials - 1)) if scatter.error else n
    return wilson(share, trials, student(scatter.freedom))


def wilson(share: float, n: float, quantile: float = NORMAL_95) -> tuple[float, float]:
    """The interval of a share of n independent trials: the shares whose test does not reject this one."""
    square = quantile**2
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = quantile / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return 0.0 if share == 0 else low, 1.0 if share == 1 else high


def interval_of_mean(parts: Sequence[tuple[float, float | None, float | None]]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean of independent figures, from (figure, lower end, upper end) of each; None where one
    has none (MOVER, Zou and Donner 2008). Of intervals within 0 and 1 it stays there."""
    below = [value - low for value, low, _ in parts if low is not None]
    above = [high - value for value, _, high in parts if high is not None]
    if min(len(below), len(above)) < len(parts):
        return None, None
    mean, n = math.fsum(value for value, _, _ in parts) / len(parts), len(parts)
    return mean - math.hypot(*below) / n, mean + math.hypot(*above) / n


def stratified(parts: Sequence[tuple[str, Apart]], most: float = math.inf) -> Apart:
    """The mean of at least one difference, each with its task; no interval and no p where none of them shows an error.

    With d_b the difference on part b of B parts, the mean is sum_b d_b / B. Tasks are independent strata (Cochran 1977,
    section 5.4), so its variance is the sum over tasks of (sum_{b of the task} s_b / B)^2: parts of one task (lengths,
    shots) may ask the same questions, and are taken to err together, which is never too small. Degrees of freedom are
    those of Satterthwaite (1946) from the tasks' own. It speaks of these tasks: no other task is drawn. The interval
    stays within `most`, the farthest that two figures can lie apart.
    """
    value, units = math.fsum(part.value for _, part in parts) / len(parts), sum(part.units for _, part in parts)
    strata: dict[str, list[Apart]] = {}
    for task, part in parts:
        strata.setdefault(task, []).append(part)
    variances = [((math.fsum(part.stderr or 0.0 for part in own) / len(parts)) ** 2, own) for own in strata.values()]
    variance = math.fsum(each for each, _ in variances)
    if variance <= 0:
        return Apart(value=value, units=units)
    degrees = [(each, min(known)) for each, own in variances
               if each > 0 and (known := [part.freedom for part in own if part.freedom is not None])]  # fmt: skip
    freedom = variance**2 / math.fsum(each**2 / own for each, own in degrees) if degrees else math.inf
    error = math.sqrt(variance)
    low, high = (max(-most, min(most, value + sign * student(freedom) * error)) for sign in (-1, 1))
    return Apart(value=value, units=units, ci_low=low, ci_high=high, p=two_sided(value / error, freedom), stderr=error,
                 freedom=freedom, test=STRATIFIED, across=sum(part.across for _, part in parts))  # fmt: skip


def pooled(figures: Sequence[tuple[float, float | None, float]], figure: Figure) -> tuple[float, float | None]:
    """One figure from those of runs that differ in their seed, where what their queries add is not kept; of each run
    (value, standard error, weight).

    The value is that of all their queries aggregated at once. Its error is that of runs and, on top, the mean of their
    own: too wide, for part of it is in both, and runs may ask the same. None where neither is known.
    """
    runs = [(math.log(value) if figure.exponential else value, weight) for value, _, weight in figures]
    total = sum(weight for _, weight in runs)
    value = figure.finish(sum(inner * weight for inner, weight in runs) / total)
    terms = [Observed(str(place), (inner * weight, weight)) for place, (inner, weight) in enumerate(runs)]
    of_runs = estimate(terms, replace(figure, observed=list))
    errors = [of_runs.stderr] if of_runs and of_runs.stderr is not None else []
    if all(error is not None for _, error, _ in figures):
        own = (weight * (error or 0.0) / figure.slope(each) / total for each, error, weight in figures)
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
