"""A sweep: what is stored is left as it is, an engine makes the others, and what it lost is made once more."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.records.schema import is_stored
from ttabench.sweep.engines import Engine, Job, Report, Resources

FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of the system after which nothing can be written: no other run would come to an end."""


def swept(
    runs: Sequence[Job], out: Path, engine: Engine, resources: Resources, *, force: bool = False
) -> Generator[Report]:
    """Make these runs, as an engine does it with what it may use; for every one a report.

    Raises:
        UserError: the engine runs nothing, or nothing more can be written.
    """
    jobs = {run.id: replace(run, out=str(out.absolute()), folder=str(Path.cwd()), force=force) for run in runs}
    todo = []
    for job in jobs.values():
        if not force and is_stored(out / job.id):
            yield Report(id=job.id, state="stored")
        else:
            todo.append(job)
    again: list[Job] = []
    for report in _made(todo, engine, resources):
        if report.state in ("busy", "lost"):
            again.append(replace(jobs[report.id], patient=True))
        else:
            yield report
    for report in _made(again, engine, resources):
        yield replace(report, state="failed") if report.state in ("busy", "lost") else report


def _made(jobs: Sequence[Job], engine: Engine, resources: Resources) -> Iterator[Report]:
    if not jobs:
        return
    for report in engine.submit(jobs, resources):
        yield report
        if report.state == "failed" and any(sign in report.reason for sign in FULL):
            raise UserError(report.reason, "What is stored is stored; the same command goes on.")
