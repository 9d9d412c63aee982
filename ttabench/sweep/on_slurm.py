"""The engine `slurm`: a job array of Slurm, through submitit; each of its `--jobs` tasks takes its share of the runs.

ttabench sweep suite.yaml --engine slurm --jobs 8 --engine-set partition=gpu --engine-set timeout_min=600
ttabench sweep suite.yaml --engine slurm --cluster local        the same in processes of this machine, to try it out
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import submitit

from ttabench.core.errors import UserError
from ttabench.sweep.engines import Job, Report, Resources

LOGS = ".submitit"
"""Below the folder of the results: what submitit keeps of its jobs."""
SLURM = ("partition", "qos", "account", "constraint")
"""Words of Slurm, and those that submitit has for every cluster; the last in numbers."""
NUMBERS = {"timeout_min": 24 * 60, "mem_gb": 0}
LAUNCHES = f"{quote(sys.executable)} -P"
"""A python that imports nothing from the current folder."""


class OnSlurm:
    """See the module."""

    OPTIONS = ("cluster", *SLURM, *NUMBERS)

    def submit(self, jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
        """See `Engine`."""
        # of jobs that were lost, one a task: the others of a task are lost with the one that ends it
        count = len(jobs) if jobs[0].patient else min(resources.jobs, len(jobs))
        shares = [list(jobs[len(jobs) * at // count : len(jobs) * (at + 1) // count]) for at in range(count)]
        for at in range(0, count, resources.jobs):
            yield from _made(shares[at : at + resources.jobs], resources)


def _made(shares: Sequence[Sequence[Job]], resources: Resources) -> Iterator[Report]:
    """What becomes of the runs of one array, task by task."""
    tasks = _submitted(shares, resources)
    try:
        for task, share in zip(tasks, shares, strict=True):
            yield from _results(task, share)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()


def _submitted(shares: Sequence[Sequence[Job]], resources: Resources) -> list[Any]:
    """The tasks of the array, one a share."""
    from ttabench.sweep.worker import take_all

    options = dict(resources.options)
    cluster = options.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(
            Path(shares[0][0].out) / LOGS, cluster=cluster, local_python=LAUNCHES, slurm_python=LAUNCHES
        )
        numbers = {name: int(options.pop(name, usual)) for name, usual in NUMBERS.items()}
        executor.update_parameters(
            name="ttabench", cpus_per_task=resources.threads or 1, gpus_per_node=math.ceil(resources.gpus),
            slurm_array_parallelism=len(shares), **{name: value for name, value in numbers.items() if value},
            **{f"slurm_{name}": value for name, value in options.items()},
        )  # fmt: skip
        return list(executor.map_array(take_all, shares, [resources.threads] * len(shares)))
    except (RuntimeError, ValueError, OSError, submitit.core.utils.FailedJobError) as error:
        fault = f"The cluster {cluster} takes no jobs ({' '.join(str(error).split())[:200]})."
        raise UserError(fault, "Mend --engine-set, or try --cluster local.") from None


def _results(task: Any, share: Sequence[Job]) -> list[Report]:
    """The reports of a task's runs; where it was killed, they are lost."""
    try:
        reports: list[Report] = task.result()
    except Exception as error:  # whatever submitit tells of a task that has no result
        last = " ".join(str(error).split())[-160:]
        return [
            Report(id=job.id, state="lost", reason=f"Task {task.job_id} of the array ended: {last}") for job in share
        ]
    return reports
