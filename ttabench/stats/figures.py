"""Figures of summed terms: what a metric adds up over queries, and what becomes of the sums.

    MEAN.inner((3.0, 4.0))                             0.75: three of four are right
    MACRO_F1.inner((1, 1, 1,  0, 1, 2))                labels of (both, predicted, gold): (1 + 0) / 2

Every figure stays the same where all sums are multiplied by one number, so the pulls of all queries sum to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ttabench.stats.clusters import Observed

LARGEST_LOG = 300.0
"""exp of more counts as no number: errors are made of squares of such figures, and exp of 709 is the largest float."""
Sums: TypeAlias = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A function of summed terms."""

    inner: Callable[[Sums], float | None]
    """The figure, or its logarithm; None where it is no number."""
    pull: Callable[[Sums], Callable[[Sums], float]]
    """How far the terms of one query pull `inner` away from where it is at these sums: its gradient times the terms."""
    exponential: bool = False
    """The figure is the exponential of `inner`, and its interval that of `inner`."""
    least: float = -math.inf
    most: float = math.inf
    """No `inner` lies outside; intervals end there."""
    weighs: bool = False
    """The last sum is what the figure is a mean over (tokens, words); else queries are."""

    @property
    def span(self) -> float:
        """How far two figures can lie apart."""
        return math.inf if self.exponential else self.most - self.least

    def finish(self, inner: float) -> float:
        """From `inner` to the figure."""
        return math.exp(min(inner, LARGEST_LOG)) if self.exponential else inner

    def slope(self, figure: float) -> float:
        """How much the figure grows with `inner`."""
        return figure if self.exponential else 1.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a metric sums over queries."""

    observed: Callable[[Sequence[Any]], Sequence[Observed] | None]
    """Terms that values, answers or stretches of text add to the figure; None where one is no number."""
    figure: Figure


def _ratio(sums: Sums) -> float | None:
    return sums[0] / sums[1] if sums[1] else None


def _ratio_pull(sums: Sums) -> Callable[[Sums], float]:
    ratio, whole = sums[0] / sums[1], sums[1]
    return lambda terms: (terms[0] - ratio * terms[1]) / whole


def _root(sums: Sums) -> float | None:
    return math.sqrt(sums[0] / sums[1]) if sums[1] else None


def _root_pull(sums: Sums) -> Callable[[Sums], float]:
    square, root = _ratio_pull(sums), math.sqrt(sums[0] / sums[1])
    return lambda terms: square(terms) / (2 * root) if root else 0.0


def _labels(sums: Sums) -> list[Sums]:
    return [sums[place : place + 3] for place in range(0, len(sums), 3)]


def _f1(sums: Sums) -> float | None:
    both, answered, right = sums
    return 2 * both / (answered + right) if answered + right > 0 else None


def _macro_f1(sums: Sums) -> float | None:
    scores = [score for label_terms in _labels(sums) if (score := _f1(label_terms)) is not None]
    return math.fsum(scores) / len(scores) if scores else None


def _macro_pull(sums: Sums) -> Callable[[Sums], float]:
    scores = [_f1(label_terms) for label_terms in _labels(sums)]
    wholes = [answered + right for _, answered, right in _labels(sums)]
    known = sum(score is not None for score in scores)

    def pull(terms: Sums) -> float:
        own = zip(_labels(terms), scores, wholes, strict=True)
        pulls = [(2 * t[0] - score * (t[1] + t[2])) / whole for t, score, whole in own if score is not None]
        return math.fsum(pulls) / known

    return pull


MEAN = Figure(inner=_ratio, pull=_ratio_pull, weighs=True)
"""(sum, count), or any ratio of sums."""
SHARE = replace(MEAN, least=0.0, most=1.0)
"""(sum of fractions from 0 to 1, count)."""
DISTANCE = replace(MEAN, least=0.0)
"""(sum of what is never negative, count)."""
PERPLEXITY = replace(DISTANCE, exponential=True)
"""exp of a ratio: (negative log-likelihood, tokens)."""
PERPLEXITIES = replace(MEAN, least=1.0)
"""(sum of perplexities, count)."""
ROOT_MEAN_SQUARE = Figure(inner=_root, pull=_root_pull, least=0.0, weighs=True)
"""(sum of squares, count)."""
MACRO_F1 = Figure(inner=_macro_f1, pull=_macro_pull, least=0.0, most=1.0)
"""(both, answered, right) of each label; the mean over labels that are right or were answered somewhere."""
