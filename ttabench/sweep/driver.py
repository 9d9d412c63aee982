"""A sweep: what is stored is left as it is, an engine makes the others, and what it lost is made once more."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Sequence
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
    stored = {id_ for id_ in jobs if not force and is_stored(out / id_)}
    yield from (Report(id=id_, state="stored") for id_ in stored)
    todo = [job for job in jobs.values() if job.id not in stored]
    for patient in (False, True):
        again: list[Job] = []
        for report in engine(todo, resources) if todo else ():
            if report.state in ("busy", "lost") and not patient:
                again.append(replace(jobs[report.id], patient=True))
                continue
            yield replace(report, state="failed") if report.state in ("busy", "lost") else report
            if report.state == "failed" and any(sign in report.reason for sign in FULL):
                raise UserError(report.reason, "What is stored is stored; the same command goes on.")
        todo = again
