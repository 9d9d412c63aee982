"""Terms that queries and scored stretches of text add to a figure: plain means, and ratios of sums.

    aggregate([0.0, 1.0, 1.0])                     mean 0.667, stderr 0.333
    estimated(RATIOS["ppl"], units)                exp(sum of NLL / sum of tokens), every token counting alike

Errors and intervals are those of `estimate`; strides of one text resemble each other, so whole texts are what varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import Apart, Estimate, difference, estimate, single
from ttabench.stats.figures import DISTANCE, LARGEST_LOG, MEAN, PERPLEXITIES, PERPLEXITY, SHARE, Figure, Kind

Pair = tuple[float, float]
"""Numerator and denominator."""


class Unit(NamedTuple):
    """A scored stretch of text."""

    text: str
    """Which text it is of, or what else varies."""
    nll: float
    """Sum of the negative log-likelihoods of its tokens (natural log)."""
    tokens: int
    words: int
    """Words that begin in it."""
    across: str = ""
    """See `Observed`."""
    question: str = ""


def aggregate(values: Sequence[float]) -> Estimate:
    """Mean, standard error and 95 % interval of at least one finite value, of independent ones. Where every value is 0
    or 1 the interval stays within 0 and 1, and has a width where all answers are right."""
    assert values, "no values to aggregate"
    assert all(math.isfinite(value) for value in values), "a per-query value is not finite"
    observed = [single(str(index), value) for index, value in enumerate(values)]
    estimate_of_mean = estimate(observed, SHARE if set(values) <= {0, 1} else MEAN)
    assert estimate_of_mean is not None, "a mean of finite values is a number"
    return estimate_of_mean


def ratio(terms: Callable[[Unit], Pair], figure: Figure = PERPLEXITY, *, mean_over_texts: bool = False) -> Kind:
    """A figure that is no mean over queries: (exp of) a ratio of sums of the terms of units of text, whose texts are
    clusters; or the mean of the perplexities of the texts."""

    def observed(units: Sequence[Unit]) -> list[Observed] | None:
        pairs = [terms(unit) for unit in units]
        if not all(math.isfinite(part) for pair in pairs for part in pair):
            return None
        if not mean_over_texts:
            return [Observed(unit.text, pair, across=unit.across, question=unit.question)
                    for unit, pair in zip(units, pairs, strict=True)]  # fmt: skip
        sums: dict[str, list[Pair]] = {}
        for unit, pair in zip(units, pairs, strict=True):
            sums.setdefault(unit.text, []).append(pair)
        texts = {name: (math.fsum(a for a, _ in own), math.fsum(b for _, b in own)) for name, own in sums.items()}
        if any(b == 0 or a / b > LARGEST_LOG for a, b in texts.values()):
            return None
        return [single(name, math.exp(a / b)) for name, (a, b) in texts.items()]

    return Kind(observed=observed, figure=figure)


def _by_token(unit: Unit) -> Pair:
    return unit.nll, unit.tokens


def _unit_mean(unit: Unit) -> Pair:
    mean = unit.nll / max(1, unit.tokens)
    return unit.tokens * math.exp(mean) if mean <= LARGEST_LOG else math.inf, unit.tokens


RATIOS: dict[str, Kind] = {
    "ppl": ratio(_by_token),
    "ppl_unit_mean": ratio(_unit_mean, PERPLEXITIES),
    "ppl_book_mean": ratio(_by_token, PERPLEXITIES, mean_over_texts=True),
    "ppl_dialogue_mean": ratio(_by_token, PERPLEXITIES, mean_over_texts=True),
    "ppl_word": ratio(lambda unit: (unit.nll, unit.words)),
    "answer_nll": ratio(_by_token, DISTANCE),
    "answer_nll_sum": ratio(lambda unit: (unit.nll, 1.0), DISTANCE),
}


def estimated(kind: Kind, values: Sequence[Any]) -> Estimate | None:
    """The figure of at least one value (see `observed` of the kind); None where it is no number: where no word begins,
    one word has all tokens, or a log-probability is not finite."""
    assert values, "nothing to aggregate"
    observed = kind.observed(values)
    estimate_of_terms = None if observed is None else estimate(observed, kind.figure)
    return None if estimate_of_terms is None else replace(estimate_of_terms, n=len(values))


def paired_difference(kind: Kind, sides: Sequence[Sequence[Any]]) -> Apart | None:
    """The difference of paired values, with its interval; None where a figure is no number. See `estimated`."""
    left, right = map(kind.observed, sides)
    return None if left is None or right is None else difference(left, right, kind.figure)


def pooled(
    figures: Sequence[tuple[float, float | None, float]], figure: Figure, *, draws: bool = False, fresh: bool = True
) -> tuple[float, float | None]:
    """One figure from those of runs that differ in their seed, where what their queries add is not kept.

    The value is that of all their queries aggregated at once. The error of runs that are independent is that of a mean
    with fixed weights, sqrt(sum (weight x error)^2) / sum of weights, taken of logarithms where figures are
    exponentials: how far the runs lie apart does not enter it. Where a run is one draw, that is all that tells the
    error, unless draws agree by luck. Runs that ask the same have the error of draws and, on top, the mean of their
    own: too wide, for part of it is in both.

    Each run comes as (value, standard error, weight); with `draws` it is one draw of what varies, and `fresh` where it
    has rows of its own, else it may ask what the others ask.
    """
    inner = [(math.log(value) if figure.exponential else value, weight) for value, _, weight in figures]
    total = sum(weight for _, weight in inner)
    value = figure.finish(sum(own * weight for own, weight in inner) / total)
    own = [None if error is None else weight * error / figure.slope(each) / total for each, error, weight in figures]
    known = [error for error in own if error is not None]
    if len(figures) > 1 and (draws or not fresh):
        pooled_estimate = estimate([Observed(str(i), (own * weight, weight)) for i, (own, weight) in enumerate(inner)],
                                   figure)  # fmt: skip
        drawing = pooled_estimate.stderr if pooled_estimate else None
        if not fresh and drawing is not None and len(known) == len(own):
            return value, math.hypot(drawing, figure.slope(value) * sum(known))
        if drawing:
            return value, drawing
    return value, figure.slope(value) * math.hypot(*known) if len(known) == len(own) else None
