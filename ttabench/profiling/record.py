"""What a profile says, `OUT/<id>/profile.json`: configuration, base model, methods, and of each at each length a row.

A row says how it ended, and its figures with their spread. The record is written anew behind every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ttabench.core.amounts import short
from ttabench.core.environment import out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.files import object_of, reading, write_atomically
from ttabench.core.meter import largest
from ttabench.core.types import Json

T = TypeVar("T")
SCHEMA: Literal[2] = 2
AGAIN = "Profile again with --force."
RECORD_FILE = "profile.json"
Status = Literal["ok", "oom", "refused", "skipped", "failed"]
"""Of a row; failed ones are tried again by the same command."""


class Figure(BaseModel):
    """A median with the smallest and the largest of its n measurements, one at least; counts have n = 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float
    high: float
    n: int = Field(default=1, ge=1)


class Row(BaseModel):
    """One method at one length; what older versions said beside is left out."""

    model_config = ConfigDict(frozen=True)

    method: str
    prefill: int
    """Tokens of context asked for, by the base model's tokenizer."""
    status: Status = "ok"
    """Measured; out of memory; refused by model or method; left out for want of time; the process died."""
    detail: str = ""
    """Why it did not end well."""
    figures: dict[str, Figure] = {}
    """By name; the name says the unit: _seconds, _ms, _bytes ..."""
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """The value of a figure, None where it was not measured."""
        return self.figures[name].value if name in self.figures else None


def figure(values: Sequence[float]) -> Figure:
    """Median, extremes and number of measurements; of what was counted, one value."""
    return Figure(value=median(values), low=min(values), high=max(values), n=len(values))


def peak(name: str, peaks: Iterable[int | None]) -> dict[str, Figure]:
    """The largest of these bytes under that name; nothing where the device tells none."""
    most = largest(peaks)
    return {} if most is None else {name: figure([most])}


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


class ProfileRecord(BaseModel):
    """A profile, or what is measured of it. JSON values only; what older versions said beside is left out."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[2] = SCHEMA
    id: str
    created: str
    """UTC, ISO 8601."""
    seconds: float
    """Spent on it in all, stops left out."""
    config: dict[str, Json]
    model: dict[str, Json]
    methods: dict[str, dict[str, Json]]
    """Growth, trained parameters and notes by name, of those that could be built."""
    rows: tuple[Row, ...]
    versions: dict[str, str]
    hardware: dict[str, Json]
    code: dict[str, Json]

    @property
    def mode(self) -> str:
        """latency, throughput or training."""
        return str(self.config["mode"])

    @property
    def base(self) -> str:
        """The base model as tables name it."""
        return f"{self.config['model']}{' (random weights)' if self.config['random_weights'] else ''}"

    def growth(self, method: str) -> str:
        """How a method's state grows with what it reads; "" for one that could not be built."""
        return str(self.methods.get(method, {}).get("growth", ""))

    def notes(self) -> list[str]:
        """Notes without which the figures would mislead, each once."""
        notes = [note for method in self.methods.values() for note in method["notes"]]
        for name, method in self.methods.items():
            if method["parameters"] and not self.config["methods"][name]["digest"]:
                notes.append(f"{name} untrained: weights do not change the cost")
        notes += [f"{row.method} at {short(row.prefill)}: {note}" for row in self.rows for note in row.notes]
        return list(dict.fromkeys(notes))


def load_profile(folder: Path) -> ProfileRecord:
    """The record in a folder."""
    file = folder / RECORD_FILE
    with reading(file, AGAIN):
        return ProfileRecord.model_validate({"schema_version": 1, **object_of(file, AGAIN)})


def save_profile(record: ProfileRecord, folder: Path) -> None:
    """Write a record, in place of what is there."""
    write_atomically(folder / RECORD_FILE, json.dumps(record.model_dump(mode="json"), indent=1) + "\n")
