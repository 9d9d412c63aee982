"""One figure from many queries, with its standard error: plain means, and ratios of sums.

    aggregate([0.0, 1.0, 1.0])                     mean 0.667, stderr 0.333
    of_units(RATIOS["ppl"], units)                 exp(sum of NLL / sum of tokens), every token counting alike

A ratio's standard error is that of the delta method (Cochran 1977, section 6.4): with e_g = a_g - r b_g for groups g of
numerators a and denominators b, var r = G/(G-1) sum e_g^2 / (sum b)^2. Strides of one text resemble each other, so the
groups are whole texts where there are several; within one text they are its strides, and the error is too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NORMAL_95 = 1.959963984540054
LARGEST_LOG = 300.0
"""exp of more counts as no number: errors are made of squares of such figures, and exp of 709 is the largest float."""

Pair = tuple[float, float]
"""Numerator and denominator."""


class Unit(NamedTuple):
    """A scored stretch of text."""

    text: str
    """Which text it is of."""
    nll: float
    """Sum of the negative log-likelihoods of its tokens (natural log)."""
    tokens: int
    words: int
    """Words that begin in it."""


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """A figure of several queries with its standard error and 95 % interval (None where one query or text shows none).

    `weight` is what the figure is a mean over: queries, tokens, words or texts.
    """

    mean: float
    n: int
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    weight: float


def aggregate(values: Sequence[float]) -> Aggregate:
    """Mean, sample standard error and 95 % interval of at least one finite value.

    The interval is mean -/+ 1.96 stderr; where every value is 0 or 1 it is Wilson's, which stays within 0 and 1 and has
    a width where all answers are right, while the standard error is 0 (Wilson 1927; Brown, Cai, DasGupta 2001).
    """
    assert values, "no values to aggregate"
    assert all(math.isfinite(value) for value in values), "a per-query value is not finite"
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Aggregate(mean=mean, n=1, stderr=None, ci_low=None, ci_high=None, weight=1)
    stderr = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = NORMAL_95 * stderr
    low, high = wilson(mean, n) if set(values) <= {0.0, 1.0} else (mean - half, mean + half)
    return Aggregate(mean=mean, n=n, stderr=stderr, ci_low=low, ci_high=high, weight=n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n independent trials: the shares whose normal test does not reject this one."""
    square = NORMAL_95**2
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = NORMAL_95 / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_of_mean(parts: Sequence[tuple[float, float | None, float | None]]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean of independent figures, from theirs (MOVER, Zou and Donner 2008).

    Of symmetric intervals it is mean -/+ 1.96 stderr; of intervals within 0 and 1 it stays there.

    Args:
        parts: (figure, lower end, upper end) of each.

    Returns:
        (lower end, upper end); None where a figure has no interval.
    """
    below = [value - low for value, low, _ in parts if low is not None]
    above = [high - value for value, _, high in parts if high is not None]
    if min(len(below), len(above)) < len(parts):
        return None, None
    mean, n = math.fsum(value for value, _, _ in parts) / len(parts), len(parts)
    return mean - math.hypot(*below) / n, mean + math.hypot(*above) / n


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A figure that is no mean over queries: (exp of) a ratio of sums over units of text."""

    terms: Callable[[Unit], Pair]
    """What a unit adds to numerator and denominator."""
    exponential: bool = True
    """The figure is the exponential of the ratio."""
    mean_over_texts: bool = False
    """The figure is the mean of the figures of the texts."""

    @property
    def outer(self) -> bool:
        """Whether the ratio over all groups still has to be exponentiated."""
        return self.exponential and not self.mean_over_texts

    def finish(self, value: float) -> float:
        """From the ratio over all groups to the figure."""
        return math.exp(value) if self.outer else value

    def unfinish(self, figure: float) -> float:
        """Back again."""
        return math.log(figure) if self.outer else figure

    def slope(self, figure: float) -> float:
        """How much the figure grows with the ratio."""
        return figure if self.outer else 1.0


def _unit_mean(unit: Unit) -> Pair:
    mean = unit.nll / max(1, unit.tokens)
    return unit.tokens * math.exp(mean) if mean <= LARGEST_LOG else math.inf, unit.tokens


RATIOS: dict[str, Ratio] = {
    "ppl": Ratio(terms=lambda unit: (unit.nll, unit.tokens)),
    "ppl_unit_mean": Ratio(terms=_unit_mean, exponential=False),
    "ppl_book_mean": Ratio(terms=lambda unit: (unit.nll, unit.tokens), mean_over_texts=True),
    "ppl_word": Ratio(terms=lambda unit: (unit.nll, unit.words)),
    "answer_nll": Ratio(terms=lambda unit: (unit.nll, unit.tokens), exponential=False),
    "answer_nll_sum": Ratio(terms=lambda unit: (unit.nll, 1.0), exponential=False),
}


def groups(ratio: Ratio, units: Sequence[Unit]) -> list[Pair] | None:
    """Numerator and denominator of every group, in the order of their first units; None where a figure is no number."""
    sums: dict[str, list[Pair]] = {}
    for unit in units:
        pair = ratio.terms(unit)
        if not all(map(math.isfinite, pair)):
            return None
        sums.setdefault(unit.text, []).append(pair)
    texts = [(math.fsum(a for a, _ in pairs), math.fsum(b for _, b in pairs)) for pairs in sums.values()]
    if ratio.mean_over_texts:
        return None if any(map(_is_no_number, texts)) else [(math.exp(a / b), 1.0) for a, b in texts]
    return texts if len(texts) > 1 else [pair for pairs in sums.values() for pair in pairs]


def _is_no_number(pair: Pair) -> bool:
    return pair[1] == 0 or pair[0] / pair[1] > LARGEST_LOG


def of_units(ratio: Ratio, units: Sequence[Unit]) -> Aggregate | None:
    """The figure of at least one unit; None where it is no number.

    That is where no word begins, where one word has all tokens, or where a log-probability is not finite.
    """
    assert units, "no units to aggregate"
    pairs = groups(ratio, units)
    total = (0.0, 0.0) if pairs is None else (math.fsum(a for a, _ in pairs), math.fsum(b for _, b in pairs))
    if pairs is None or total[1] == 0 or (ratio.outer and _is_no_number(total)):
        return None
    value, weight, count = total[0] / total[1], total[1], len(pairs)
    figure = ratio.finish(value)
    if count == 1:
        return Aggregate(mean=figure, n=len(units), stderr=None, ci_low=None, ci_high=None, weight=weight)
    spread = math.sqrt(count / (count - 1) * math.fsum((a - value * b) ** 2 for a, b in pairs)) / weight
    low, high = value - NORMAL_95 * spread, value + NORMAL_95 * spread
    return Aggregate(
        mean=figure,
        n=len(units),
        stderr=ratio.slope(figure) * spread,
        ci_low=ratio.finish(low),
        ci_high=ratio.finish(min(high, LARGEST_LOG) if ratio.outer else high),
        weight=weight,
    )


def pooled(figures: Sequence[tuple[float, float | None, float]], ratio: Ratio | None) -> tuple[float, float | None]:
    """One figure from those of independent runs.

    The value is that of all their queries aggregated at once. The error is that of a mean of independent figures with
    fixed weights, sqrt(sum (weight x error)^2) / sum of weights, taken of logarithms where figures are exponentials.
    How far the runs lie apart does not enter it, as it would enter the error of all queries at once.

    Args:
        figures: (value, standard error, weight) of each run.
        ratio: what kind of figure; None is a plain mean.

    Returns:
        (value, standard error); no error where a run shows none.
    """
    kind = ratio or Ratio(terms=lambda unit: (unit.nll, unit.tokens), exponential=False)
    total = sum(weight for _, _, weight in figures)
    value = kind.finish(sum(kind.unfinish(each) * weight for each, _, weight in figures) / total)
    if any(error is None for _, error, _ in figures):
        return value, None
    spread = math.sqrt(sum((weight * (error or 0.0) / kind.slope(each)) ** 2 for each, error, weight in figures))
    return value, kind.slope(value) * spread / total
