"""Figures: functions of terms that a metric sums over queries.

    MEAN.inner((3.0, 4.0))                                   0.75: three of four are right
    MACRO_F1.inner((1, 1, 1,  0, 1, 2))                      (both, predicted, gold): (1 + 0) / 2
    RATIO_FIGURES["ppl"].to_observations([Observation("a", (4.0, 2, 1))])    (4.0, 2): by token
    CORPUS_FIGURES["macro_f1"].to_observations([Observation("d1", ("sports", "politics", False))])

The values of a ratio are scored text segments: the sum of the negative log-likelihoods of its
tokens (natural log), the number of tokens, and the number of words that begin in it. The values of
a corpus figure are answers: the prediction, the target, and whether it was chosen among given
options, in which case it is a label of its own.

Every figure is unchanged if all sums are multiplied by one number, so the influence values of all
queries sum to 0.

Labels are the targets and the options that were chosen, compared without case and surrounding
blanks. An answer without a number counts as the smallest or the largest target, whichever is
further from its own target, as in LaMP's evaluation (arXiv 2304.11406), where these are 1 and 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ttabench.core.errors import UserError
from ttabench.stats.clusters import Observation

NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)")
MAX_NUMBER = 1e100
"""An answer with a larger number counts as one without a number."""
MAX_LOG = 300.0
"""Larger logarithms count as not a number. Errors square such figures, and exp(709) is the largest
float."""
Sums: TypeAlias = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A function of summed terms."""

    inner: Callable[[Sums], float | None]
    """The figure or its logarithm; `None` if it is not a number."""
    influence: Callable[[Sums], Callable[[Sums], float]]
    """Influence of the terms of one query on `inner` at these sums: its gradient times the terms.
    """
    exponential: bool = False
    """True if the figure is the exponential of `inner`; then its interval is that of `inner`,
    transformed."""
    least: float = -math.inf
    most: float = math.inf
    """`inner` is between `least` and `most`; intervals end there."""
    is_weighted: bool = False
    """True if the last sum is the weight of the mean (tokens, words); otherwise every query has
    weight 1."""
    to_observations: Callable[[Sequence[Observation]], Sequence[Observation] | None] = list
    """Convert values, answers or text segments to terms; `None` if a term is not a number."""

    @property
    def span(self) -> float:
        """Largest possible difference of two figures."""
        return math.inf if self.exponential else self.most - self.least

    def from_inner(self, inner: float) -> float:
        """Convert `inner` to the figure."""
        return math.exp(min(inner, MAX_LOG)) if self.exponential else inner

    def slope(self, figure: float) -> float:
        """Compute the derivative of the figure with respect to `inner`."""
        return figure if self.exponential else 1.0


def _ratio(sums: Sums) -> float | None:
    return sums[0] / sums[1] if sums[1] else None


def _ratio_influence(sums: Sums) -> Callable[[Sums], float]:
    ratio, whole = sums[0] / sums[1], sums[1]
    return lambda terms: (terms[0] - ratio * terms[1]) / whole


def _root(sums: Sums) -> float | None:
    return math.sqrt(sums[0] / sums[1]) if sums[1] else None


def _root_influence(sums: Sums) -> Callable[[Sums], float]:
    square, root = _ratio_influence(sums), math.sqrt(sums[0] / sums[1])
    return lambda terms: square(terms) / (2 * root) if root else 0.0


def _label_terms(sums: Sums) -> list[Sums]:
    return [sums[place : place + 3] for place in range(0, len(sums), 3)]


def _f1(sums: Sums) -> float | None:
    both, answered, right = sums
    return 2 * both / (answered + right) if answered + right > 0 else None


def _macro_f1(sums: Sums) -> float | None:
    scores = [
        score for label_terms in _label_terms(sums) if (score := _f1(label_terms)) is not None
    ]
    return math.fsum(scores) / len(scores) if scores else None


def _macro_f1_influence(sums: Sums) -> Callable[[Sums], float]:
    scores = [_f1(label_terms) for label_terms in _label_terms(sums)]
    wholes = [answered + right for _, answered, right in _label_terms(sums)]
    known = sum(score is not None for score in scores)

    def influence(terms: Sums) -> float:
        labels = zip(_label_terms(terms), scores, wholes, strict=True)
        contributions = [
            (2 * t[0] - score * (t[1] + t[2])) / whole
            for t, score, whole in labels
            if score is not None
        ]
        return math.fsum(contributions) / known

    return influence


MEAN = Figure(inner=_ratio, influence=_ratio_influence, is_weighted=True)
"""(sum, count), or any ratio of sums."""
PROPORTION = replace(MEAN, least=0.0, most=1.0)
"""(sum of fractions from 0 to 1, count)."""
NON_NEGATIVE_MEAN = replace(MEAN, least=0.0)
"""(sum of non-negative values, count)."""
PERPLEXITY = replace(NON_NEGATIVE_MEAN, exponential=True)
"""exp of a ratio: (negative log-likelihood, tokens)."""
MEAN_PERPLEXITY = replace(MEAN, least=1.0)
"""(sum of perplexities, count)."""
ROOT_MEAN_SQUARE = Figure(inner=_root, influence=_root_influence, least=0.0, is_weighted=True)
"""(sum of squares, count)."""
MACRO_F1 = Figure(inner=_macro_f1, influence=_macro_f1_influence, least=0.0, most=1.0)
"""(both, answered, right) of each label; the mean over labels that are right or answered at least
once."""


def figure_of_terms(
    terms: Callable[[Sequence[Any]], Sequence[tuple[float, ...]]], figure: Figure
) -> Figure:
    """Build a figure whose terms are computed from all values together."""

    def to_observations(values: Sequence[Observation]) -> list[Observation] | None:
        made = terms([value.terms for value in values])
        if not all(math.isfinite(number) for numbers in made for number in numbers):
            return None
        return [value._replace(terms=new) for value, new in zip(values, made, strict=True)]

    return replace(figure, to_observations=to_observations)


def ratio(
    terms: Callable[[float, int, int], tuple[float, float]], figure: Figure = PERPLEXITY
) -> Figure:
    """Build a ratio (or its exp) of summed terms of text segments, clustered by text."""
    return figure_of_terms(lambda segments: [terms(*segment) for segment in segments], figure)


def _text_perplexities(segments: Sequence[Observation]) -> list[Observation] | None:
    """Perplexity of every text."""
    texts: dict[str, list[tuple[Any, ...]]] = {}
    for segment in segments:
        texts.setdefault(segment.cluster, []).append(segment.terms)
    means = [
        math.fsum(nll for nll, *_ in terms) / (sum(tokens for _, tokens, _ in terms) or math.nan)
        for terms in texts.values()
    ]
    if not all(mean <= MAX_LOG for mean in means):
        return None
    return [
        Observation(text, (math.exp(mean), 1.0)) for text, mean in zip(texts, means, strict=True)
    ]


def _nll_and_tokens(nll: float, tokens: int, _words: int) -> tuple[float, float]:
    return nll, tokens


def _weighted_unit_perplexity(nll: float, tokens: int, _words: int) -> tuple[float, float]:
    mean = nll / max(1, tokens)
    return tokens * math.exp(mean) if mean <= MAX_LOG else math.inf, tokens


RATIO_FIGURES: dict[str, Figure] = {
    "ppl": ratio(_nll_and_tokens),
    "ppl_unit_mean": ratio(_weighted_unit_perplexity, MEAN_PERPLEXITY),
    "ppl_book_mean": replace(MEAN_PERPLEXITY, to_observations=_text_perplexities),
    "ppl_dialogue_mean": replace(MEAN_PERPLEXITY, to_observations=_text_perplexities),
    "ppl_word": ratio(lambda nll, _, words: (nll, words)),
    "answer_nll": ratio(_nll_and_tokens, NON_NEGATIVE_MEAN),
    "answer_nll_sum": ratio(lambda nll, *_: (nll, 1.0), NON_NEGATIVE_MEAN),
}


def _label_counts(values: Sequence[tuple[str, str, bool]]) -> list[tuple[float, ...]]:
    """(both, answered, right) of every label, in order.

    A written answer that equals no target is not a label.
    """
    pairs = [(_label(prediction), _label(target)) for prediction, target, _ in values]
    chosen = {
        answer
        for (answer, _), (*_, among_options) in zip(pairs, values, strict=True)
        if among_options
    }
    labels = sorted(chosen | {target for _, target in pairs})
    return [
        tuple(
            float(x)
            for label in labels
            for x in (answer == right == label, answer == label, right == label)
        )
        for answer, right in pairs
    ]


def _label(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: str) -> float | None:
    match = NUMBER.search(text)
    value = float(match[0].replace(",", "")) if match else None
    return None if value is None or abs(value) > MAX_NUMBER else value


def _absolute_errors(values: Sequence[tuple[str, str, bool]]) -> list[float]:
    """Absolute error of each predicted number.

    Raises:
        UserError: a target has no number.
    """
    right = [_number(target) for _, target, _ in values]
    known = [target for target in right if target is not None]
    if len(known) < len(right):
        text = values[right.index(None)][1]
        raise UserError(
            f"The right answer {text[:40]!r} is not a number.",
            "Choose another metric for the task.",
        )
    low, high = min(known), max(known)
    errors = []
    for (prediction, *_), target in zip(values, known, strict=True):
        answer = _number(prediction)
        errors.append(max(target - low, high - target) if answer is None else abs(answer - target))
    return errors


CORPUS_FIGURES = {
    "macro_f1": figure_of_terms(_label_counts, MACRO_F1),
    "mae": figure_of_terms(
        lambda values: [(error, 1.0) for error in _absolute_errors(values)], NON_NEGATIVE_MEAN
    ),
    "rmse": figure_of_terms(
        lambda values: [(error**2, 1.0) for error in _absolute_errors(values)], ROOT_MEAN_SQUARE
    ),
}
