"""Metrics of other packages, through the entry-point group `ttabench.metrics`, and those in a file of Python.

    def closeness(prediction, ask):                   # ./mine.py: what was answered, and the query with its answers
        return float(prediction in ask.answers)       # one number from 0 to 1, more is better

    of_file(Path("./mine.py"), "closeness", own)      -> the Metric

A `Metric` in place of the function says a name, a range, a direction. `own` are the names of ttabench's own metrics.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.plugins import NAME, Offer, code_at, module_at, one_of, told
from ttabench.core.types import Ask
from ttabench.stats.metric import Metric

GROUP = "ttabench.metrics"
"""Entry points of other packages: functions of a prediction and a query, or metrics."""


def of_package(offer: Offer, own: Collection[str]) -> Metric:
    """The metric that an installed package offers; what it offers else is refused."""
    made = _metric(offer.load(), offer.name)
    where, hint = f"{GROUP} {offer.name!r} of {offer.package}", f"Mend or uninstall {offer.package}."
    fault = f"calls itself {made.name!r}" if made.name != offer.name else _fault(made, own)
    if fault:
        raise UserError(f"{where} {fault}.", hint)
    return _guarded(replace(made, origin=offer.origin), Path(offer.package), hint)


def of_file(path: Path, wanted: str, own: Collection[str]) -> Metric:
    """The metric of a file, by name where it holds several ("": the only one); what cannot be used is refused."""
    module = module_at(path)
    functions = {
        name: _metric(value, name)
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    metrics = {value.name: value for value in vars(module).values() if isinstance(value, Metric)}
    known = {**functions, **metrics} if wanted or not metrics else metrics
    made = one_of("metric", path, wanted, known, "Write a function there: def closeness(prediction, ask).")
    if fault := _fault(made, own):
        raise UserError(f"{path}: {made.name} {fault}.", "Mend the file.")
    return _guarded(replace(made, origin=code_at(path)), path, "Mend the file.")


def _metric(value: Any, name: str) -> Metric:
    """A metric as it is, a function as one from 0 to 1."""
    if isinstance(value, Metric):
        return value
    return Metric(name=name, summary=next(iter((inspect.getdoc(value) or "").splitlines()), ""), function=value)


def _fault(made: Metric, own: Collection[str]) -> str:
    """The fault of a metric of somebody else, as the end of a sentence; "" for none."""
    if made.name in own:
        return "has a name of ttabench's own"
    if not NAME.fullmatch(made.name):
        return f"has the name {made.name!r}, which may hold lower-case letters, digits and _ only"
    judge = made.judge
    if made.ratio or made.corpus or not callable(judge):
        return "is no function of one answer"
    with suppress(ValueError):  # nobody knows what it takes
        try:
            inspect.signature(judge).bind("", None)
        except TypeError:
            return f"takes ({', '.join(inspect.signature(judge).parameters)}), not (prediction, ask)"
    return ""


def _guarded(made: Metric, path: Path, hint: str) -> Metric:
    """The same, of which whatever is no number within its range is said in one line."""
    judge = made.judge
    assert judge is not None, "a metric without a function is refused"

    def value(answer: Any, ask: Ask) -> float:
        try:
            number = judge(answer, ask)
        except (Exception, SystemExit) as error:  # whatever the code of somebody else does
            raise UserError(f"{told(error, path)} (metric {made.name}, query {ask.key[:40]}).", hint) from None
        ends = " to ".join("any" if end is None else f"{end:g}" for end in (made.least, made.most))
        if not isinstance(number, Real) or not math.isfinite(number) or not made.within(float(number)):
            given = f"{number:g}" if isinstance(number, Real) else f"a value of type {type(number).__name__}"
            fault = f"{path}: {made.name} gives {given} for the query {ask.key[:40]}, and declares {ends}."
            raise UserError(fault, hint)
        return float(number)

    return replace(made, of_choice=value) if made.function is None else replace(made, function=value)
