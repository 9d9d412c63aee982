"""What a profile leaves behind: finished rows as they come, then one record.

OUT/<id>/profile.json     configuration, base model, methods, rows, versions
OUT/<id>/rows.jsonl       what is finished of a profile that still goes on
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from ttabench.core.amounts import short
from ttabench.core.checked_file import object_of, reading
from ttabench.core.errors import UserError
from ttabench.core.files import remove, write_atomically
from ttabench.core.types import Json
from ttabench.profiling.rows import FINAL, Row
from ttabench.records.folder import ResultFolder

SCHEMA: Literal[2] = 2
"""2: the id is a hash of what differs from the defaults."""
AGAIN = "Profile again with --force."
RECORD_FILE, PARTIAL_FILE = "profile.json", "rows.jsonl"


class ProfileRecord(BaseModel):
    """A finished profile. JSON values only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[2] = SCHEMA
    id: str
    formerly: str = ""
    """The id that it had in an earlier schema."""
    created: str
    """UTC, ISO 8601."""
    seconds: float
    """Spent on it in all, stops left out."""
    config: dict[str, Json]
    machine: dict[str, Json] = {}
    """Measured limits of the machine, of older versions."""
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
        of_methods = [note for method in self.methods.values() for note in method["notes"]]
        untrained = [
            name for name, method in self.methods.items()
            if method["parameters"] and not self.config["methods"][name]["digest"]
        ]  # fmt: skip
        notes = [f"{', '.join(untrained)} untrained: weights do not change the cost"] if untrained else []
        where: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                where.setdefault(note, []).append(f"{row.method} at {short(row.prefill)}")
        of_rows = [f"{', '.join(places)}: {note}" for note, places in where.items()]
        return list(dict.fromkeys([*of_methods, *notes, *of_rows]))


def load_profile(folder: Path) -> ProfileRecord:
    """The record in a folder."""
    file = folder / RECORD_FILE
    with reading(file, AGAIN):
        return ProfileRecord.model_validate({"schema_version": 1, **object_of(file, AGAIN)})


class ProfileFolder(ResultFolder[ProfileRecord]):
    """The folder of one profile and what is finished of it, see `ResultFolder`."""

    record_file: ClassVar[str] = RECORD_FILE
    partial_file: ClassVar[str] = PARTIAL_FILE
    continuing: ClassVar[str] = "Continuing profile {name}: {count} rows are finished already."

    def __init__(self, out: Path, profile: str) -> None:
        self.model: dict[str, Json] = {}
        """As soon as it is known."""
        self.methods: dict[str, dict[str, Json]] = {}
        self.rows: dict[tuple[str, int], Row] = {}
        self.seconds = 0.0
        super().__init__(out, profile)

    load = staticmethod(load_profile)

    def busy(self) -> str:
        """Refuse: two processes that measure at once would disturb each other."""
        raise UserError(f"Another process measures {self.path}.", "Wait for it: both would be wrong.")

    def is_empty(self) -> bool:
        """Whether no row is finished."""
        return not any(row.status in FINAL for row in self.rows.values())

    def discard(self) -> None:
        """Forget what was measured."""
        remove(self.path / RECORD_FILE)
        super().discard()

    def resume(self) -> int:
        """Take up what is finished; returns the number of rows. A line that was not written to its end is left out."""
        for line in self.read():
            with suppress(ValueError, KeyError, TypeError):
                self._take(line)
        self.rows = {place: row for place, row in self.rows.items() if row.status in FINAL}
        return len(self.rows)

    def append(self, kind: str, value: Json, seconds: float = 0.0) -> None:
        """Keep one finding, at once."""
        line = {"kind": kind, "value": value, "seconds": seconds}
        self._take(line)
        self.write(line)

    def _take(self, line: dict[str, Json]) -> None:
        kind, value = line["kind"], line["value"]
        self.seconds += float(line["seconds"])
        if kind == "row":
            row = Row.model_validate(value)
            self.rows[row.method, row.prefill] = row
        elif kind == "method":
            self.methods[value["name"]] = value
        elif kind == "model":
            self.model = value

    def finish(self, record: ProfileRecord) -> None:
        """Write the record, then drop what it was made of."""
        write_atomically(self.path / RECORD_FILE, json.dumps(record.model_dump(mode="json"), indent=1) + "\n")
        super().discard()
