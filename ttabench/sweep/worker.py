"""Where runs are made: a process that loads a base model once, and takes one run after another, for any engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from ttabench.core import memory
from ttabench.core.environment import use_threads
from ttabench.core.errors import UserError
from ttabench.core.files import held
from ttabench.run.base_model import ModelCache
from ttabench.run.evaluation import execute
from ttabench.run.plan import make_plan
from ttabench.sweep.engines import Job, Report, State

LONGEST = 300
"""Characters of a reason."""
FITS = "Take a smaller batch_size, model or task_set, or run fewer at a time (--jobs)."


@lru_cache(maxsize=1)
def models_of(_base: str) -> ModelCache:
    """Where a base model is, or will be once it is asked for; a process holds one at a time."""
    return ModelCache()


def take(job: Job) -> Report:
    """Make a run, or find it; whatever goes wrong is the reason in the report."""
    began = time.monotonic()

    def report(state: State, reason: str = "") -> Report:
        short = " ".join(reason.split())
        short = short if len(short) <= LONGEST else f"{short[: LONGEST // 2]} ... {short[-LONGEST // 2 :]}"
        return Report(id=job.id, state=state, reason=short, seconds=time.monotonic() - began)

    try:
        os.chdir(job.folder)
        plan = make_plan(job.request, job.seed)
        if plan.config.identity() != job.id:
            raise UserError("What it reads has changed since the sweep began.", "Give the same command again.")
        if not job.patient and held(Path(job.out) / job.id):
            return report("busy")
        outcome = execute(plan, models_of(job.base), Path(job.out), force=job.force)
    except UserError as error:
        return report("failed", str(error))
    except Exception as error:  # a method or a file of somebody else may do anything; the other runs go on
        if memory.out_of_memory(error):
            return report("failed", str(memory.told(error, FITS)))
        return report("failed", f"{type(error).__name__}: {error}")
    return report(outcome.how)


def answer(request: tuple[Job, int | None], tell: Callable[[Report], None]) -> None:
    """Make a run with so many threads in a process of this machine, see `core.child`."""
    job, threads = request
    use_threads(threads)
    tell(take(job))


def take_all(jobs: list[Job], threads: int | None) -> list[Report]:
    """Make runs in a process of a cluster."""
    use_threads(threads)
    return [take(job) for job in jobs]
