"""Figures of summed terms: what a metric adds up over queries, and what becomes of the sums.

    MEAN.inner((3.0, 4.0))                                      0.75: three of four are right
    MACRO_F1.inner((1, 1, 1,  0, 1, 2))                         labels of (both, predicted, gold): (1 + 0) / 2
    RATIOS["ppl"].observed([Unit("a", 4.0, 2, 1)])              (4.0, 2.0): every token counts alike
    CORPORA["macro_f1"].observed([Written("d1", "sports", "sports"), Written("d2", "sports", "politics")])

Every figure stays the same where all sums are multiplied by one number, so the pulls of all queries sum to 0.

Labels are the right ones and the options that were chosen, compared without case and surrounding blanks. An answer
without a number counts as the one that is furthest from the right one of the smallest and the largest right ones, as in
LaMP's own evaluation (arXiv 2304.11406), where these are 1 and 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.errors import UserError
from ttabench.stats.clusters import Observed

NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)")
LARGEST = 1e100
"""Beyond, an answer counts as no number."""
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


class Written(NamedTuple):
    """An answer and the right one."""

    cluster: str
    """The unit that varies, see `Observed`."""
    prediction: str
    target: str
    stratum: str = ""
    across: str = ""
    question: str = ""
    chosen: bool = False
    """The answer is one of given options, and so a label of its own."""


def ratio(terms: Callable[[Unit], tuple[float, float]], figure: Figure = PERPLEXITY) -> Kind:
    """(exp of) a ratio of sums of the terms of units of text, whose texts are clusters."""

    def observed(units: Sequence[Unit]) -> list[Observed] | None:
        pairs = [terms(unit) for unit in units]
        if not all(math.isfinite(part) for pair in pairs for part in pair):
            return None
        return [Observed(unit.text, pair, across=unit.across, question=unit.question)
                for unit, pair in zip(units, pairs, strict=True)]  # fmt: skip

    return Kind(observed=observed, figure=figure)


def _of_texts(units: Sequence[Unit]) -> list[Observed] | None:
    """The perplexity of every text."""
    texts: dict[str, list[Unit]] = {}
    for unit in units:
        texts.setdefault(unit.text, []).append(unit)
    means = [math.fsum(unit.nll for unit in own) / (sum(unit.tokens for unit in own) or math.nan)
             for own in texts.values()]  # fmt: skip
    if not all(mean <= LARGEST_LOG for mean in means):
        return None
    return [Observed(text, (math.exp(mean), 1.0)) for text, mean in zip(texts, means, strict=True)]


def _by_token(unit: Unit) -> tuple[float, float]:
    return unit.nll, unit.tokens


def _unit_mean(unit: Unit) -> tuple[float, float]:
    mean = unit.nll / max(1, unit.tokens)
    return unit.tokens * math.exp(mean) if mean <= LARGEST_LOG else math.inf, unit.tokens


RATIOS: dict[str, Kind] = {
    "ppl": ratio(_by_token),
    "ppl_unit_mean": ratio(_unit_mean, PERPLEXITIES),
    "ppl_book_mean": Kind(observed=_of_texts, figure=PERPLEXITIES),
    "ppl_dialogue_mean": Kind(observed=_of_texts, figure=PERPLEXITIES),
    "ppl_word": ratio(lambda unit: (unit.nll, unit.words)),
    "answer_nll": ratio(_by_token, DISTANCE),
    "answer_nll_sum": ratio(lambda unit: (unit.nll, 1.0), DISTANCE),
}


def corpus(terms: Callable[[Sequence[Written]], Sequence[tuple[float, ...]]], figure: Figure) -> Kind:
    """A figure of the sums of terms that answers add: of each as many as all answers together ask for."""

    def observed(values: Sequence[Written]) -> list[Observed]:
        return [Observed(written.cluster, own, written.stratum, written.across, written.question)
                for written, own in zip(values, terms(values), strict=True)]  # fmt: skip

    return Kind(observed=observed, figure=figure)


def _labelled(values: Sequence[Written]) -> list[tuple[float, ...]]:
    """(both, answered, right) of every label, in order; what is written and is none of the right ones is no label."""
    pairs = [(_label(written.prediction), _label(written.target)) for written in values]
    chosen = {given for (given, _), written in zip(pairs, values, strict=True) if written.chosen}
    labels = sorted(chosen | {target for _, target in pairs})
    return [
        tuple(float(x) for label in labels for x in (given == right == label, given == label, right == label))
        for given, right in pairs
    ]


def _label(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: str) -> float | None:
    match = NUMBER.search(text)
    value = float(match[0].replace(",", "")) if match else None
    return None if value is None or abs(value) > LARGEST else value


def _errors(values: Sequence[Written]) -> list[float]:
    """How far each number is from the right one."""
    right = [_number(written.target) for written in values]
    known = [written for written in right if written is not None]
    if len(known) < len(right):
        text = values[right.index(None)].target
        raise UserError(f"The right answer {text[:40]!r} is no number.", "Give the task another metric.")
    low, high = min(known), max(known)
    errors = []
    for written, target in zip(values, known, strict=True):
        given = _number(written.prediction)
        errors.append(max(target - low, high - target) if given is None else abs(given - target))
    return errors


CORPORA = {
    "macro_f1": corpus(_labelled, MACRO_F1),
    "mae": corpus(lambda values: [(error, 1.0) for error in _errors(values)], DISTANCE),
    "rmse": corpus(lambda values: [(error**2, 1.0) for error in _errors(values)], ROOT_MEAN_SQUARE),
}
