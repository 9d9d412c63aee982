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
from ttabench.core.child import Child, Death
from ttabench.core.errors import UserError
from ttabench.core.memory import says_so
from ttabench.core.progress import Tick, no_tick, no_word
from ttabench.core.sizes import short
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


def execute(
    job: Job, out: Path, *, force: bool = False, threads: int | None = None, tick: Tick = no_tick,
    notify: Callable[[str], None] = no_word, launch: Callable[[Mapping[str, Any]], Lines] | None = None,
) -> Outcome:  # fmt: skip
    """Return the profile if it is stored, else run or continue it.

    Args:
        force: measure again.
        threads: of the processes that measure; None leaves torch's choice.
        tick: told of rows.
        notify: told that a profile goes on.
        launch: runs a request in a process of its own; None: `launched`.
    """
    config, hardware = job.config(), environment.hardware()
    where = out / identity(config, hardware, job.defaults())

    def work(folder: ProfileFolder) -> ProfileRecord:
        for method in job.chosen:
            while lengths := _open(job, folder, method):
                _measure(job, folder, method, {"lengths": lengths, "threads": threads}, launch or launched, tick)
                assert _open(job, folder, method) != lengths, f"a process of {method} ended without a row"
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

    return obtained(ProfileFolder, where, work, force=force, notify=notify)


def _open(job: Job, folder: ProfileFolder, method: str) -> list[int]:
    """The lengths that have no row yet."""
    return [length for length in job.lengths if (method, length) not in folder.rows]


def _measure(
    job: Job, folder: ProfileFolder, method: str, request: Mapping[str, Any],
    launch: Callable[[Mapping[str, Any]], Lines], tick: Tick,
) -> None:  # fmt: skip
    """Keep what one process finds; its death is a row, and a fault of the user's is raised."""
    known = [row for row in folder.rows.values() if row.method == method and row.value("adapt_seconds")]
    at, clock, total = request["lengths"][0], time.perf_counter(), len(job.chosen) * len(job.lengths)
    lines = launch({**request, "job": job, "method": method, "known": known})
    with closing(lines):  # type: ignore[type-var]
        for line in lines:
            kind = "row" if isinstance(line, Death) else line[0]
            value: Json = _row_of(line, method, at).model_dump() if isinstance(line, Death) else line[1]
            if kind == "fault":
                raise UserError(value["what"], value["hint"])
            if kind == "at":
                at = value
                tick(f"rows, {method} at {short(at)}", len(folder.rows), total)
                continue
            spent = time.perf_counter() - clock if kind == "row" else 0.0
            folder.append(kind, value, spent)
            clock += spent
            tick(f"rows, {method}", len(folder.rows), total)


def _row_of(death: Death, method: str, length: int) -> Row:
    """The row of the length that a process was at when it died."""
    if death.code == -signal.SIGKILL:
        return oom(method, length, "the process was killed, as a system does that runs out of memory")
    if says_so(death.said):
        return oom(method, length, death.said)
    ending = f"killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    return Row(method=method, prefill=length, status="failed", detail=f"the process {ending}: {death.said}"[:300])
