"""The engine `local`: processes of this machine, `--jobs` of them, each of which takes many runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue

from ttabench.core.child import Child, Death
from ttabench.core.environment import cores
from ttabench.core.errors import UserError
from ttabench.sweep.engines import Job, Report, Resources


class Local:
    """See the module."""

    OPTIONS = ()

    def submit(self, jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
        """See `Engine`."""
        count = min(resources.jobs, len(jobs))
        threads = resources.threads or (max(1, (cores() or 1) // count) if count > 1 else None)
        places = [_Place(place, threads) for place in _places(count, resources.gpus)]
        waiting, reports = list(jobs), SimpleQueue[Report | Exception]()
        for place in places:
            threading.Thread(target=place.serve, args=(waiting, reports), daemon=True).start()
        try:
            for _ in jobs:
                report = reports.get()
                if isinstance(report, Exception):
                    raise report
                yield report
        finally:
            waiting.clear()
            for place in places:
                place.close()


class _Place:
    """Where one run at a time is made: a process; where it is killed, the next run gets a fresh one."""

    def __init__(self, environment: Mapping[str, str], threads: int | None) -> None:
        self._environment, self._threads = environment, threads
        self._child: Child | None = None

    def serve(self, waiting: list[Job], reports: SimpleQueue[Report | Exception]) -> None:
        """Make what waits, the runs of the base model that is loaded first."""
        base = ""
        try:
            while waiting:
                job = waiting.pop(next((at for at, one in enumerate(waiting) if one.base == base), 0))
                base = job.base
                reports.put(self._made(job))
        except IndexError:  # another thread took the last one
            return
        except Exception as error:  # told where somebody listens
            reports.put(error)

    def _made(self, job: Job) -> Report:
        from ttabench.sweep import worker

        self._child = self._child or Child(worker.answer, ("ttabench.lm.model",), self._environment)
        *_, report = self._child.ask((job, self._threads))
        if isinstance(report, Death):
            self.close()
            return Report(id=job.id, state="lost", reason=_reason(report))
        assert isinstance(report, Report)
        return report

    def close(self) -> None:
        """End the process at once."""
        if self._child is not None:
            self._child.close()
        self._child = None


def _reason(death: Death) -> str:
    if death.code == -signal.SIGKILL:
        return "Its process was killed (signal 9), as a system does that runs out of memory."
    how = f"was killed by signal {-death.code}" if death.code < 0 else f"ended with code {death.code}"
    return f"Its process {how}: {death.said}"


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
