"""Runs a profile: one process a method, what it finds stored line by line, its death a row."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core import environment
from ttabench.core.child import Child, Death
from ttabench.core.errors import UserError
from ttabench.core.memory import says_so
from ttabench.core.progress import Tick, no_tick, no_word
from ttabench.core.types import Json
from ttabench.profiling.job import Job, identity
from ttabench.profiling.record import ProfileFolder, ProfileRecord
from ttabench.profiling.rows import FINAL, Row, oom
from ttabench.records.folder import Obtained, obtained

Lines: TypeAlias = Iterator[tuple[str, Json] | Death]
"""Findings of a process, line by line (kind, value), and its death where it died."""
Outcome: TypeAlias = Obtained[ProfileRecord]


def launched(request: Mapping[str, Any]) -> Lines:
    """What a process of its own finds; it ends when the iterator is closed, or when this process is killed."""
    from ttabench.profiling import worker

    with closing(Child(worker.answer, ("ttabench.profiling.worker",))) as child:
        yield from child.ask(request)


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a profile is run and who is told."""

    force: bool = False
    threads: int | None = None
    """Of the processor, for the processes that measure; None leaves torch's choice."""
    tick: Tick = no_tick
    notify: Callable[[str], None] = no_word
    on_row: Callable[[Row, int, int], None] | None = None
    """Called with each row as it comes, how many there are by then, and how many there will be."""
    launch: Callable[[Mapping[str, Any]], Lines] | None = None
    """Runs a request in a process of its own; None: `launched`."""


def execute(job: Job, out: Path, manner: Manner | None = None) -> Outcome:
    """Return the profile if it is stored, else run or continue it."""
    how = manner or Manner()
    config, hardware = job.config(), environment.hardware()
    where = out / identity(config, hardware, job.defaults())

    def work(folder: ProfileFolder) -> ProfileRecord:
        _Pass(job, folder, how).run()
        record = ProfileRecord(
            id=folder.path.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=folder.seconds,
            config=config,
            model=folder.model,
            methods=folder.methods,
            rows=tuple(folder.rows[method, length] for method in job.chosen for length in job.lengths),
            versions=environment.versions(),
            hardware=hardware,
            code=environment.code(),
        )
        if all(row.status in FINAL for row in record.rows):  # else the same command tries them again
            folder.finish(record)
        return record

    return obtained(ProfileFolder, where, work, force=how.force, notify=how.notify)


class _Pass:
    """One pass over what is missing."""

    def __init__(self, job: Job, folder: ProfileFolder, manner: Manner) -> None:
        self.job, self.folder, self.manner = job, folder, manner
        self.clock, self.at = time.perf_counter(), 0

    def run(self) -> None:
        """Measure every method."""
        for method in self.job.chosen:
            while lengths := self._open(method):
                self.at = lengths[0]
                death = self._listen(method, lengths)
                if death is not None:
                    self._keep(_row_of(death, method, self.at))
                assert self._open(method) != lengths, f"a process of {method} ended without a row"

    def _open(self, method: str) -> list[int]:
        return [length for length in self.job.lengths if (method, length) not in self.folder.rows]

    def _listen(self, method: str, lengths: list[int]) -> Death | None:
        """Take what a process finds; faults of the user are raised here."""
        known = [row for row in self.folder.rows.values() if row.method == method and row.value("adapt_seconds")]
        request = {"job": self.job, "method": method, "lengths": lengths, "threads": self.manner.threads}
        lines = (self.manner.launch or launched)({**request, "known": [row.model_dump() for row in known]})
        with closing(lines):  # type: ignore[type-var]
            for line in lines:
                if isinstance(line, Death):
                    return line
                self._hear(*line)
        return None

    def _hear(self, kind: str, value: Json) -> None:
        if kind == "fault":
            raise UserError(value["what"], value["hint"])
        if kind == "tick":
            activity, done, total = value
            self.manner.tick(f"rows, {activity} ({done} of {total})", *self._count())
        elif kind == "at":
            self.at = value
        elif kind == "row":
            self._keep(Row.model_validate(value))
        else:
            self.folder.append(kind, value)

    def _count(self) -> tuple[int, int]:
        """How many rows are done, of how many."""
        return len(self.folder.rows), len(self.job.chosen) * len(self.job.lengths)

    def _keep(self, row: Row) -> None:
        now = time.perf_counter()
        self.folder.append("row", row.model_dump(), now - self.clock)
        self.clock = now
        self.manner.tick("rows", *self._count())
        if self.manner.on_row is not None:
            self.manner.on_row(row, *self._count())


def _row_of(death: Death, method: str, length: int) -> Row:
    """The row of the length that a process was at when it died."""
    if death.code == -signal.SIGKILL:
        return oom(method, length, "the process was killed, as a system does that runs out of memory")
    if says_so(death.said):
        return oom(method, length, death.said)
    ending = f"killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    return Row(method=method, prefill=length, status="failed", detail=f"the process {ending}: {death.said}"[:300])
