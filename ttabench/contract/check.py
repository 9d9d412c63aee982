"""`ttabench check`: every promise of a method on every base of two layers that it takes, or of a metric.

verdicts(cases(spec, settings)[0])      Verdict("asking twice ...", kept=True, told=""), ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ttabench.contract.bases import BASES
from ttabench.contract.case import Broken, Case
from ttabench.contract.promises import PROMISES
from ttabench.core.errors import UserError
from ttabench.core.types import Answer, Ask, Choose
from ttabench.methods.spec import MethodSpec
from ttabench.readers import load
from ttabench.stats.metric import Metric

QUESTIONS = 32
"""Of the miniature world, that a metric is tried on."""
SOUND = "every answer to every question, no answer too, has one finite number within the range that it declares"
STEADY = "the same answers have the same values again, and in another order"


@dataclass(frozen=True)
class Verdict:
    """Whether a promise is kept."""

    promise: str
    kept: bool
    told: str = ""
    """The observation that breaks it."""


def cases(spec: MethodSpec, settings: Any) -> tuple[dict[str, Case], list[str]]:
    """The method on every base that it takes, by name, and why it does not take the others."""
    by_base, refused = dict[str, Case](), dict[str, UserError]()
    for name, base in BASES.items():
        case = Case(spec, settings, base)
        try:
            case.untrained()
        except UserError as error:
            refused[name] = error
        else:
            by_base[name] = case
    if not by_base:
        raise next(iter(refused.values()))
    return by_base, [f"not on {name}: {error}" for name, error in refused.items()]


def verdicts(checked: Mapping[str, Case]) -> Iterator[Verdict]:
    """One after the other, in the order of `PROMISES`."""
    return (verdict(sentence, checked) for sentence in PROMISES)


def verdict(sentence: str, checked: Mapping[str, Case]) -> Verdict:
    """Whether a promise is kept on every base; the first one on which it is not tells."""
    for name, case in checked.items():
        try:
            PROMISES[sentence](case)
        except Broken as broken:
            return Verdict(sentence, kept=False, told=f"on {name}: {broken}")
        except (Exception, SystemExit) as error:  # a method of somebody else may do anything
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            return Verdict(sentence, kept=False, told=f"on {name}: {line}")
    return Verdict(sentence, kept=True)


def verdicts_of_metric(metric: Metric) -> Iterator[Verdict]:
    """Of a metric of single answers, tried on the miniature world; after a broken promise there is none."""
    if metric.judge is None:
        raise UserError(f"{metric.name} has no value for a single answer.", "Check a function of one, ./mine.py:NAME.")
    answered = list(_answered(metric))
    try:
        values = [metric(answer.prediction, ask, answer) for ask, answer in answered]
    except UserError as error:
        yield Verdict(SOUND, kept=False, told=str(error))
        return
    yield Verdict(SOUND, kept=True)
    again = [metric(answer.prediction, ask, answer) for ask, answer in reversed(answered)][::-1]
    place = next((place for place, value in enumerate(values) if value != again[place]), None)
    seen = ""
    if place is not None:
        seen = f"{values[place]:g}, then {again[place]:g} for {answered[place][1].prediction[:40]!r}"
    yield Verdict(STEADY, kept=place is None, told=seen)


def _answered(metric: Metric) -> Iterator[tuple[Ask, Answer]]:
    """Questions with answers: right, another question's, long, in another script, none; of options each chosen once."""
    task = load("streamingqa" if metric.function else "superglue", source="mini")
    asks = list(islice((ask for episode in task.episodes() for ask in episode.asks()), QUESTIONS))
    for number, ask in enumerate(asks):
        if isinstance(ask.want, Choose):
            count = len(ask.want.options)
            for chosen in range(count):
                logprobs = tuple(-1.0 if place == chosen else -2.0 - place for place in range(count))
                text = ask.want.options[chosen].strip()
                yield ask, Answer(prediction=text, logprobs=logprobs, tokens=(2,) * count)
        else:
            right, other = ask.answers[0], asks[number - 1].answers[0]
            for text in (right, other, f"{right}, that is to say {other}. " * 20, "Ответ: 北京", ""):
                yield ask, Answer(prediction=text)
