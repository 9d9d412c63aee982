"""The engine `ray`: a run is a task of a Ray cluster, with the processors and GPUs that it needs."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

import ray

from ttabench.core.errors import UserError
from ttabench.sweep.engines import Job, Report, Resources

HERE = "local"
"""An address that stands for a cluster of this machine, which ends with the command."""
REACHED = 5.0
"""Seconds in which a machine has to answer."""


class OnRay:
    """See the module."""

    OPTIONS = ("address",)

    def submit(self, jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
        """See `Engine`; `resources.jobs` counts only on a cluster of this machine: others have as many as they hold."""
        with redirect_stdout(sys.stderr):  # Ray tells of lost processes there, and standard output is for results
            _connected(resources.options.get("address", "auto"), resources)
            from ttabench.sweep.worker import take_all

            take = ray.remote(num_cpus=resources.threads or 1, num_gpus=resources.gpus, max_retries=0)(take_all)
            open_ = {take.remote([job], resources.threads): job for job in jobs}
            try:
                while open_:
                    (done, *_), _ = ray.wait(list(open_), num_returns=1)
                    yield _report(done, open_.pop(done))
            finally:
                for task in open_:
                    ray.cancel(task, force=True)
                ray.shutdown()


def _report(task: Any, job: Job) -> Report:
    """The report of a finished task of Ray."""
    try:
        (report,) = ray.get(task)
        assert isinstance(report, Report)
    except ray.exceptions.RayError as error:  # a machine or process that went away
        fault = f"The process of Ray that made it ended ({type(error).__name__})."
        return Report(id=job.id, state="lost", reason=fault)
    return report


def _connected(address: str, resources: Resources) -> None:
    """Find the cluster."""
    try:
        if address == HERE:
            count = resources.jobs * (resources.threads or 1)
            ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            return
        host, colon, port = address.rpartition(":")
        if colon and "/" not in host:  # Ray itself would wait for minutes
            socket.create_connection((host, int(port)), timeout=REACHED).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        fault = f"No Ray cluster can be reached at {address} ({' '.join(str(error).split())[:160]})."
        raise UserError(fault, "Start one: ray start --head; or give --address HOST:PORT, or local.") from None
