"""What a metric is: a figure of answers, and how it is read; those of other packages (entry-point group
`ttabench.metrics`), and in a file of Python, too.

    def closeness(prediction, ask):                   # ./mine.py: what was answered, and the query with its answers
        return float(prediction in ask.answers)       # one number from 0 to 1, more is better

A `Metric` in place of the function says a name, a range, a direction. Records keep `declared` of a metric that is not
ttabench's own: its figures are shown wherever the records are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.plugins import NAME, Offer, code_at, module_at, one_of, told
from ttabench.core.types import Answer, Ask, Json
from ttabench.stats.figures import MEAN, Kind

GROUP = "ttabench.metrics"
"""Entry points of other packages: functions of a prediction and a query, or metrics."""
DECLARED = ("scale", "digits", "higher_is_better", "least", "most")
"""Fields of a metric that its figures are read by."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; call one of queries with a prediction and its `Ask`, and the log-probabilities of a choice."""

    name: str
    summary: str
    function: Callable[[str, Ask], float] | None = None
    """Of the predicted text."""
    of_choice: Callable[[Answer, Ask], float] | None = None
    """Of the log-probabilities of the options."""
    ratio: Kind | None = None
    """Of all scored stretches together; such a metric has no value for one query."""
    corpus: Kind | None = None
    """Of all answers together; such a metric has no value for one query, either."""
    scale: float = 100.0
    """Multiply by this to print (percent); stored values stay as they are."""
    digits: int = 1
    """Printed after the point."""
    higher_is_better: bool = True
    least: float | None = 0.0
    """No value of a query is below; None where there is no such number."""
    most: float | None = 1.0
    origin: str = ""
    """The package, or a digest of the file, that it is from; "" for ttabench's own."""

    @property
    def declared(self) -> dict[str, Json]:
        """What it is and how its figures are read, for a record."""
        return {name: getattr(self, name) for name in ("summary", *DECLARED)}

    def within(self, value: float) -> bool:
        """Whether a query may have this value."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def judge(self) -> Callable[[Any, Ask], float] | None:
        """Its function of one query; None of one that has no value for it."""
        return self.function or self.of_choice

    @property
    def kind(self) -> Kind:
        """What it sums over queries, with the range of its figures."""
        least, most = -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most
        return self.ratio or self.corpus or Kind(observed=list, figure=replace(MEAN, least=least, most=most))

    def __call__(self, prediction: str, ask: Ask, scored: Answer | None = None) -> float:
        """The value for one query, from `least` to `most`."""
        if self.function is not None:
            return self.function(prediction, ask)
        assert self.of_choice is not None, f"metric {self.name} has no value for one query"
        assert scored is not None, f"metric {self.name} needs log-probabilities"
        return self.of_choice(scored, ask)


def of_package(offer: Offer, own: Collection[str]) -> Metric:
    """The metric that an installed package offers, under the name that it is offered by; `own`: names of ttabench's."""
    hint = f"Mend or uninstall {offer.package}."
    made = replace(_metric(offer.load(), offer.name), name=offer.name, origin=offer.origin)
    return _guarded(made, Path(offer.package), hint, own)


def of_file(path: Path, wanted: str, own: Collection[str]) -> Metric:
    """The metric of a file, by name where it holds several ("": the only one); what cannot be used is refused."""
    module = module_at(path)
    metrics: dict[str, Any] = {value.name: value for value in vars(module).values() if isinstance(value, Metric)}
    functions = {name: value for name, value in vars(module).items() if isinstance(value, FunctionType)
                 and value.__module__ == module.__name__ and not name.startswith("_")}  # fmt: skip
    known = {**functions, **metrics} if wanted or not metrics else metrics
    hint = "Write a function there: def closeness(prediction, ask)."
    name = one_of("metric", path, wanted, {name: name for name in known}, hint)
    return _guarded(replace(_metric(known[name], name), origin=code_at(path)), path, "Mend the file.", own)


def _metric(value: Any, name: str) -> Metric:
    """A metric as it is, a function as one from 0 to 1."""
    if isinstance(value, Metric):
        return value
    return Metric(name=name, summary=next(iter((inspect.getdoc(value) or "").splitlines()), ""), function=value)


def _guarded(made: Metric, path: Path, hint: str, own: Collection[str]) -> Metric:
    """The same, of which whatever is no number within its range is said in one line; what is no metric of answers is
    refused."""
    judge = made.judge
    if made.name in own:
        raise UserError(f"{path}: {made.name} has a name of ttabench's own.", hint)
    if not NAME.fullmatch(made.name):
        raise UserError(f"{path}: the name {made.name!r} may hold lower-case letters, digits and _ only.", hint)
    if made.ratio or made.corpus or not callable(judge):
        raise UserError(f"{path}: {made.name} is no function of one answer.", hint)

    def value(answer: Any, ask: Ask) -> float:
        try:
            number = judge(answer, ask)
        except (Exception, SystemExit) as error:  # whatever the code of somebody else does
            raise UserError(f"{told(error, path)} (metric {made.name}, query {ask.key[:40]}).", hint) from None
        if not isinstance(number, Real) or not math.isfinite(number) or not made.within(float(number)):
            ends = " to ".join("any" if end is None else f"{end:g}" for end in (made.least, made.most))
            fault = f"{path}: {made.name} gives {number!r:.40} for the query {ask.key[:40]}, and declares {ends}."
            raise UserError(fault, hint)
        return float(number)

    return replace(made, of_choice=value) if made.function is None else replace(made, function=value)
