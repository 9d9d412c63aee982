"""Runs a profile: one process a method, what it finds stored row by row, its death a row."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core import environment, files
from ttabench.core.amounts import short
from ttabench.core.child import Child, Death
from ttabench.core.digests import identity
from ttabench.core.environment import says_so
from ttabench.core.errors import UserError
from ttabench.core.types import Json, Tick, no_tick, no_word
from ttabench.profiling.job import Job
from ttabench.profiling.record import RECORD_FILE, ProfileRecord, Row, load_profile, oom, save_profile
from ttabench.records.folder import Obtained

Lines: TypeAlias = Iterator[tuple[str, Json] | Death]
"""Findings of a process, line by line (kind, value), and its death where it died."""


def launched(request: Mapping[str, Any]) -> Lines:
    """What a process of its own finds; it ends when the iterator is closed, or when this process is killed."""
    from ttabench.profiling import measure

    with closing(Child(measure.answer, ("ttabench.profiling.measure",))) as child:
        yield from child.ask(request)


def execute(
    job: Job, out: Path, *, force: bool = False, threads: int | None = None, tick: Tick = no_tick,
    notify: Callable[[str], None] = no_word,
) -> Obtained[ProfileRecord]:  # fmt: skip
    """Return the profile if it is stored, else run or continue it, in processes of so many threads."""
    config, hardware = job.config(), environment.hardware()
    machine = {key: hardware[key] for key in ("cpu", "cores", "threads", "gpu") if key in hardware}
    folder = out / identity({**config, "machine": machine})
    places = [(method, length) for method in job.chosen for length in job.lengths]
    before = load_profile(folder) if (folder / RECORD_FILE).exists() and not force else None
    rows = {(row.method, row.prefill): row for row in before.rows if row.status != "failed"} if before else {}
    if before is not None and len(rows) == len(places):
        return Obtained(record=before, folder=folder, how="stored")
    if rows:
        notify(f"Continuing profile {folder.name}: {len(rows)} rows are finished already.")
    record = before or ProfileRecord(
        id=folder.name, created=datetime.now(UTC).isoformat(timespec="seconds"), seconds=0.0, config=config, model={},
        methods={}, rows=(), versions=environment.versions(), hardware=hardware, code=environment.code(),
    )  # fmt: skip
    with _held(folder, out):
        for method in job.chosen:
            while lengths := [length for length in job.lengths if (method, length) not in rows]:
                request = {"job": job, "method": method, "lengths": lengths, "threads": threads}
                began, at, count = time.perf_counter(), lengths[0], len(rows)
                with closing(launched(request)) as lines:  # type: ignore[type-var]
                    for line in lines:
                        kind, value = ("row", _row_of(line, method, at)) if isinstance(line, Death) else line
                        if kind == "fault":
                            raise UserError(*value)
                        at = value if kind == "at" else at
                        if kind == "row":
                            row = Row.model_validate(value)
                            rows[row.method, row.prefill] = row
                            kept, now = tuple(rows[place] for place in places if place in rows), time.perf_counter()
                            changes = {"rows": kept, "seconds": record.seconds + now - began}
                            record, began = record.model_copy(update=changes), now
                            save_profile(record, folder)
                        elif kind == "method":
                            methods = {**record.methods, value["name"]: value}
                            record = record.model_copy(update={"methods": methods})
                        elif kind == "model":
                            record = record.model_copy(update={"model": value})
                        tick(f"rows, {method} at {short(at)}", len(rows), len(places))
                assert len(rows) > count, f"a process of {method} ended without a row"
    return Obtained(record=record, folder=folder, how="continued" if before is not None else "new")


@contextmanager
def _held(folder: Path, out: Path) -> Iterator[None]:
    """Hold the folder of a profile; where nothing comes of it, it is removed."""

    def refuse() -> None:
        raise UserError(f"Another process measures {folder}.", "Wait for it: both would be wrong.")

    files.made(folder, out)
    with files.locked(folder, refuse):
        files.sweep(folder)
        try:
            yield
        finally:
            if not (folder / RECORD_FILE).exists():
                files.remove(folder)


def _row_of(death: Death, method: str, length: int) -> Json:
    """The row of the length that a process was at when it died."""
    if death.code == -signal.SIGKILL or says_so(death.said):
        killed = "the process was killed, as a system does that runs out of memory"
        return oom(method, length, killed if death.code == -signal.SIGKILL else death.said).model_dump()
    ending = f"killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    detail = f"the process {ending}: {death.said}"[:300]
    return Row(method=method, prefill=length, status="failed", detail=detail).model_dump()
