"""The engine `local`: processes of this machine, `--jobs` of them, each of which takes many runs.

Threads of the processor are divided among them. Of GPUs each has `--gpus-per-run`; of less than one, several share it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from ttabench.core.environment import cores
from ttabench.core.errors import UserError
from ttabench.sweep.engines import OPEN, Job, Report, Resources, refuse_options
from ttabench.sweep.process import Process


class Local:
    """See the module."""

    def submit(self, jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
        """See `Engine`."""
        refuse_options(resources, [], "local")
        count = min(resources.jobs, len(jobs))
        threads = resources.threads or (max(1, (cores() or 1) // count) if count > 1 else None)
        processes = [Process(threads=threads, environment=place) for place in _places(count, resources.gpus)]
        waiting, reports = list(jobs), SimpleQueue[Report | Exception]()
        for process in processes:
            threading.Thread(target=_serve, args=(process, waiting, reports), daemon=True).start()
        left = len(jobs)
        try:
            while left:
                report = reports.get()
                if isinstance(report, Exception):
                    raise report
                left -= report.state not in OPEN
                yield report
        finally:
            waiting.clear()
            for process in processes:
                process.close()


def _serve(process: Process, waiting: list[Job], reports: SimpleQueue[Report | Exception]) -> None:
    """Let a process make what waits, those of the base that it has loaded first."""
    base = ""
    try:
        while waiting:
            job = waiting.pop(next((place for place, waiting_job in enumerate(waiting) if waiting_job.base == base), 0))
            base = job.base
            reports.put(Report(id=job.id, state="running"))
            for report in process.make(job):
                reports.put(report)
    except IndexError:  # another thread took the last one
        return
    except Exception as error:  # told where somebody listens
        reports.put(error)


def _places(count: int, gpus: float) -> list[dict[str, str]]:
    """The GPUs that each of so many processes may use."""
    if not gpus:
        return [{}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        import torch

        devices = [str(number) for number in range(torch.cuda.device_count())]
    else:
        devices = [device for device in named.split(",") if device]
    if count * gpus > len(devices):
        fault = f"{count} runs at a time with {gpus:g} GPUs each are more than the {len(devices)} GPUs here."
        raise UserError(fault, "Give fewer --jobs, or less to --gpus-per-run.")
    shares = [
        devices[int(place * gpus) : max(int(place * gpus) + 1, int((place + 1) * gpus))] for place in range(count)
    ]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]
