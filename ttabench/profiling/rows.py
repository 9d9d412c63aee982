"""What a profile says about one method at one length: how it ended, and its figures with their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ttabench.core.errors import UserError
from ttabench.core.memory import out_of_memory
from ttabench.core.meter import largest

T = TypeVar("T")
Status = Literal["ok", "oom", "refused", "skipped", "failed"]
FINAL: tuple[Status, ...] = ("ok", "oom", "refused", "skipped")
"""How rows end for good; failed ones are tried again by the same command."""


class Figure(BaseModel):
    """A median with the smallest and the largest of its n measurements, one at least; counts have n = 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float
    high: float
    n: int = Field(default=1, ge=1)


class Row(BaseModel):
    """One method at one length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    prefill: int
    """Tokens of context asked for, by the base model's tokenizer."""
    status: Status = "ok"
    """Measured; out of memory; refused by model or method; left out for want of time; the process died."""
    detail: str = ""
    """Why it did not end well."""
    figures: dict[str, Figure] = {}
    """By name; the name says the unit: _seconds, _ms, _bytes ... Of older versions also _share, of a limit, and the
    seconds and load averages of the whole row."""
    notes: tuple[str, ...] = ()
    paths: dict[str, str] = {}
    """Of rows of older versions: how the model was run while reading ("adapt") and answering ("ask")."""

    def value(self, name: str) -> float | None:
        """The value of a figure, None where it was not measured."""
        return self.figures[name].value if name in self.figures else None


def figure(values: Sequence[float]) -> Figure:
    """Median, extremes and number of measurements."""
    return Figure(value=median(values), low=min(values), high=max(values), n=len(values))


def exactly(value: float) -> Figure:
    """A figure that was counted rather than timed."""
    return Figure(value=value, low=value, high=value)


def peak(name: str, peaks: Iterable[int | None]) -> dict[str, Figure]:
    """The largest of these bytes under that name; nothing where the device tells none."""
    most = largest(peaks)
    return {} if most is None else {name: exactly(most)}


def added(parts: Sequence[Figure]) -> Figure:
    """The sum of phases measured apart: of their medians, their lows and their highs."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("value", "low", "high")}
    return Figure(**sums, n=min(part.n for part in parts))


def oom(method: str, prefill: int, reason: str) -> Row:
    """The row of a length that memory does not suffice for."""
    return Row(method=method, prefill=prefill, status="oom", detail=" ".join(reason.split())[:200])


def measured(method: str, prefill: int, measure: Callable[[], T]) -> T | Row:
    """What is measured or made; too little memory and refusals of model or method are rows."""
    try:
        return measure()
    except UserError as error:
        return Row(method=method, prefill=prefill, status="refused", detail=str(error))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return oom(method, prefill, str(error))
