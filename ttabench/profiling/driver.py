"""Runs a profile: one process a method, what it finds stored line by line, its death a row."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core import environment
from ttabench.core.amounts import short
from ttabench.core.child import Child, Death
from ttabench.core.errors import UserError
from ttabench.core.memory import says_so
from ttabench.core.types import Json, Tick, no_tick, no_word
from ttabench.profiling.job import Job, identity
from ttabench.profiling.record import ProfileFolder, ProfileRecord
from ttabench.profiling.rows import FINAL, Row, oom
from ttabench.records.folder import Obtained, obtained

Lines: TypeAlias = Iterator[tuple[str, Json] | Death]
"""Findings of a process, line by line (kind, value), and its death where it died."""


def launched(request: Mapping[str, Any]) -> Lines:
    """What a process of its own finds; it ends when the iterator is closed, or when this process is killed."""
    from ttabench.profiling import measure

    with closing(Child(measure.answer, ("ttabench.profiling.measure",))) as child:
        yield from child.ask(request)


def execute(
    job: Job, out: Path, *, force: bool = False, threads: int | None = None, tick: Tick = no_tick,
    notify: Callable[[str], None] = no_word, launch: Callable[[Mapping[str, Any]], Lines] | None = None,
) -> Obtained[ProfileRecord]:  # fmt: skip
    """Return the profile if it is stored, else run or continue it.

    Args:
        force: measure again.
        threads: of the processes that measure; None leaves torch's choice.
        tick: told of rows.
        notify: told that a profile goes on.
        launch: runs a request in a process of its own; None: `launched`.
    """
    config, hardware = job.config(), environment.hardware()
    places = [(method, length) for method in job.chosen for length in job.lengths]

    def work(folder: ProfileFolder) -> ProfileRecord:
        for method in job.chosen:
            while lengths := [length for length in job.lengths if (method, length) not in folder.rows]:
                request = {"job": job, "method": method, "lengths": lengths, "threads": threads}
                before = len(folder.rows)
                _measure(folder, method, lengths[0], (launch or launched)(request), tick, len(places))
                assert len(folder.rows) > before, f"a process of {method} ended without a row"
        record = ProfileRecord(
            id=folder.path.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=folder.seconds,
            config=config,
            model=folder.model,
            methods=folder.methods,
            rows=tuple(folder.rows[place] for place in places),
            versions=environment.versions(),
            hardware=hardware,
            code=environment.code(),
        )
        if all(row.status in FINAL for row in record.rows):  # else the same command tries them again
            folder.finish(record)
        return record

    where = out / identity(config, hardware, job.defaults())
    return obtained(ProfileFolder, where, work, force=force, notify=notify)


def _measure(folder: ProfileFolder, method: str, at: int, lines: Lines, tick: Tick, total: int) -> None:
    """Keep what one process finds, from the length `at` on; its death is a row, and a fault of the user's is raised."""
    clock = time.perf_counter()
    with closing(lines):  # type: ignore[type-var]
        for line in lines:
            kind, value = ("row", _row_of(line, method, at)) if isinstance(line, Death) else line
            if kind == "fault":
                raise UserError(value["what"], value["hint"])
            if kind == "at":
                at = value
            else:
                spent = time.perf_counter() - clock if kind == "row" else 0.0
                folder.append(kind, value, spent)
                clock += spent
            tick(f"rows, {method} at {short(at)}", len(folder.rows), total)


def _row_of(death: Death, method: str, length: int) -> Json:
    """The row of the length that a process was at when it died."""
    if death.code == -signal.SIGKILL:
        return oom(method, length, "the process was killed, as a system does that runs out of memory").model_dump()
    if says_so(death.said):
        return oom(method, length, death.said).model_dump()
    ending = f"killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    detail = f"the process {ending}: {death.said}"[:300]
    return Row(method=method, prefill=length, status="failed", detail=detail).model_dump()
