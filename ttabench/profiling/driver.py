"""Execution of a profile: one process per method, rows stored as they finish, a crash stored as
a row."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core import environment, files
from ttabench.core.amounts import format_tokens
from ttabench.core.child import ProcessDeath, WorkerProcess
from ttabench.core.digests import hash_values
from ttabench.core.environment import mentions_out_of_memory
from ttabench.core.errors import UserError
from ttabench.core.types import Json, ProgressCallback, no_log, no_progress
from ttabench.profiling.job import Job
from ttabench.profiling.record import (
    RECORD_FILE,
    ProfileRecord,
    Row,
    load_profile,
    make_oom_row,
    save_profile,
)
from ttabench.records.folder import RunResult

Findings: TypeAlias = Iterator[tuple[str, Json] | ProcessDeath]
"""(kind, value) messages of a process, and its death if it crashed."""


def launch_measurement(request: Mapping[str, Any]) -> Findings:
    """Yield the messages of a measurement in a child process.

    The process ends when the iterator is closed, or when this process is killed.
    """
    from ttabench.profiling import measure

    with closing(WorkerProcess(measure.measure_method, ("ttabench.profiling.measure",))) as child:
        yield from child.ask(request)


def execute(
    job: Job,
    out: Path,
    *,
    force: bool = False,
    threads: int | None = None,
    on_progress: ProgressCallback = no_progress,
    log: Callable[[str], None] = no_log,
) -> RunResult[ProfileRecord]:
    """Return the profile if it is stored, else compute or resume it, with this number of threads.

    Raises:
        UserError: the configuration is invalid, or another process is using the folder.
    """
    config, hardware = job.config(), environment.describe_hardware()
    machine = {key: hardware[key] for key in ("cpu", "cores", "threads", "gpu") if key in hardware}
    folder = out / hash_values({**config, "machine": machine})
    cells = [(method, length) for method in job.method_requests for length in job.lengths]
    before = load_profile(folder) if (folder / RECORD_FILE).exists() and not force else None
    rows = (
        {(row.method, row.prefill): row for row in before.rows if row.status != "failed"}
        if before
        else {}
    )
    if before is not None and len(rows) == len(cells):
        return RunResult(record=before, folder=folder, status="stored")
    if rows:
        log(f"Continuing profile {folder.name}: {len(rows)} rows are already finished.")
    record = before or ProfileRecord(
        id=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        config=config,
        model={},
        methods={},
        rows=(),
        versions=environment.package_versions(),
        hardware=hardware,
        code=environment.code_version(),
    )
    with _lock_folder(folder, out):
        for method in job.method_requests:
            while lengths := [length for length in job.lengths if (method, length) not in rows]:
                request = {"job": job, "method": method, "lengths": lengths, "threads": threads}
                began, current_length, count = time.perf_counter(), lengths[0], len(rows)
                with closing(launch_measurement(request)) as lines:  # type: ignore[type-var]
                    for line in lines:
                        kind, value = (
                            ("row", _row_from_death(line, method, current_length))
                            if isinstance(line, ProcessDeath)
                            else line
                        )
                        if kind == "fault":
                            raise UserError(*value)
                        current_length = value if kind == "at" else current_length
                        if kind == "row":
                            row = Row.model_validate(value)
                            rows[row.method, row.prefill] = row
                            finished_rows, now = (
                                tuple(rows[cell] for cell in cells if cell in rows),
                                time.perf_counter(),
                            )
                            changes = {
                                "rows": finished_rows,
                                "seconds": record.seconds + now - began,
                            }
                            record, began = record.model_copy(update=changes), now
                            save_profile(record, folder)
                        elif kind == "method":
                            methods = {**record.methods, value["name"]: value}
                            record = record.model_copy(update={"methods": methods})
                        elif kind == "model":
                            record = record.model_copy(update={"model": value})
                        on_progress(
                            f"rows, {method} at {format_tokens(current_length)}",
                            len(rows),
                            len(cells),
                        )
                assert len(rows) > count, f"a process of {method} ended without a row"
    return RunResult(
        record=record, folder=folder, status="continued" if before is not None else "new"
    )


@contextmanager
def _lock_folder(folder: Path, out: Path) -> Iterator[None]:
    """Lock the folder of a profile, and remove it afterwards if it has no record."""

    def refuse() -> None:
        fault = f"Another process is measuring {folder}."
        raise UserError(fault, "Run again when it is done; parallel measurements would be wrong.")

    files.make_writable_folder(folder, out)
    with files.hold_lock(folder, refuse):
        files.remove_partial_files(folder)
        try:
            yield
        finally:
            if not (folder / RECORD_FILE).exists():
                files.remove_path(folder)


def _row_from_death(death: ProcessDeath, method: str, length: int) -> Json:
    """Row of the length that a process was measuring when it died."""
    if death.code == -signal.SIGKILL or mentions_out_of_memory(death.last_line):
        oom_reason = "the process was killed; the system may have run out of memory"
        return make_oom_row(
            method, length, oom_reason if death.code == -signal.SIGKILL else death.last_line
        ).model_dump()
    cause = f"killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    detail = f"the process {cause}: {death.last_line}"[:300]
    return Row(method=method, prefill=length, status="failed", detail=detail).model_dump()
