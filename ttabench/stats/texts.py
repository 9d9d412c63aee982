"""Figures of all answers together that are no mean of one value each: macro-F1, errors of numbers.

    CORPORA["macro_f1"].observed([Written("d1", "sports", "sports"), Written("d2", "sports", "politics")])
    two observations, of (both, answered, right) for the labels politics and sports; macro-F1 is (0 + 0.667) / 2

Labels are the right ones and the options that were chosen, compared without case and surrounding blanks. An answer
without a number counts as the one that is furthest from the right one of the smallest and the largest right ones, as in
LaMP's own evaluation (arXiv 2304.11406), where these are 1 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ttabench.core.errors import UserError
from ttabench.stats.clusters import Observed
from ttabench.stats.figures import DISTANCE, MACRO_F1, ROOT_MEAN_SQUARE, Figure, Kind

NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)")
LARGEST = 1e100
"""Beyond, an answer counts as no number."""
Terms: TypeAlias = list[tuple[float, ...]]


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


def corpus(terms: Callable[[Sequence[Written]], Terms], figure: Figure) -> Kind:
    """A figure of the sums of terms that answers add: of each as many as all answers together ask for."""

    def observed(values: Sequence[Written]) -> list[Observed]:
        return [
            Observed(written.cluster, own, written.stratum, written.across, written.question)
            for written, own in zip(values, terms(values), strict=True)
        ]

    return Kind(observed=observed, figure=figure)


def _labelled(values: Sequence[Written]) -> Terms:
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
