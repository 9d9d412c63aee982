"""A sweep: what is stored is left as it is, an engine makes the others, and what it lost is made once more."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.records.schema import is_stored
from ttabench.sweep.engines import Engine, Job, Report, Resources

FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of the system after which nothing can be written: no other run would come to an end."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How runs are made."""

    out: Path
    engine: Engine
    resources: Resources = field(default_factory=Resources)
    force: bool = False


def swept(runs: Sequence[Job], manner: Manner) -> Generator[Report]:
    """Make these runs; for every one a report in a last state, and reports of those that go on.

    Raises:
        UserError: the engine runs nothing, or nothing more can be written.
    """
    out, here = str(manner.out.absolute()), str(Path.cwd())
    jobs = {run.id: replace(run, out=out, folder=here, force=manner.force) for run in runs}
    todo = []
    for job in jobs.values():
        if not manner.force and is_stored(manner.out / job.id):
            yield Report(id=job.id, state="stored")
        else:
            todo.append(job)
    again: dict[str, Report] = {}
    for report in _made(todo, manner):
        if report.state in ("busy", "lost"):
            again[report.id] = report
            yield replace(report, state="waiting")
        else:
            yield report
    rest = []
    for number, report in again.items():
        if report.state == "busy" and is_stored(manner.out / number):
            yield Report(id=number, state="stored")
        else:
            rest.append(replace(jobs[number], patient=True))
    for report in _made(rest, manner):
        yield replace(report, state="failed") if report.state in ("busy", "lost") else report


def _made(jobs: Sequence[Job], manner: Manner) -> Iterator[Report]:
    if not jobs:
        return
    for report in manner.engine.submit(jobs, manner.resources):
        yield report
        if report.state == "failed" and any(sign in report.reason for sign in FULL):
            raise UserError(report.reason, "What is stored is stored; the same command goes on.")
