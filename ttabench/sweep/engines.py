"""Sweep execution and its engines: local processes, a Ray cluster, or a Slurm job array.

An engine yields a `JobReport` per job, in any order, and decides nothing else. Stored runs are
found in the results folder, and its locks protect two sweeps that share a folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from shlex import quote
from typing import Literal, TypeAlias

from ttabench.core import environment
from ttabench.core.child import ProcessDeath, SendMessage, WorkerProcess
from ttabench.core.environment import available_cores, use_threads
from ttabench.core.errors import UserError, require_known
from ttabench.core.files import is_locked
from ttabench.records.schema import is_stored
from ttabench.run.evaluation import MODEL_CACHE, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

OUT_OF_MEMORY_HINT = "Use a smaller batch_size, model or task_set, or fewer --jobs."
RunStatus = Literal["stored", "continued", "new", "failed", "busy", "lost"]
"""Status of a run: the first three are stored. busy: another process computes it; lost: its
process ended."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep, as it is sent to a worker."""

    id: str
    request: RunRequest
    seed: int
    base: str
    """Base model that a process has to load, as text; runs with the same base model are
    adjacent."""
    method: str
    """Method with its non-default settings and options."""
    task: str
    out: str = ""
    """Folder of all runs."""
    folder: str = ""
    """Working directory of the command, for relative paths."""
    force: bool = False
    notes: tuple[str, ...] = ()
    """Caveats of its method."""
    waits_for_others: bool = False
    """True to wait if another process computes this run; otherwise the status is "busy"."""

    @property
    def label(self) -> str:
        """Description of the run."""
        return f"{self.method} on {self.task} under {self.request.base_name} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The outcome of one run in a sweep."""

    id: str
    status: RunStatus
    reason: str = ""
    """Reason of a failure, in one line."""
    seconds: float = 0.0
    """Seconds of this run, including loading its base model."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources for the runs of a sweep."""

    jobs: int = 1
    """Number of concurrent runs."""
    threads: int | None = None
    """Threads per run; `None` for the default of torch."""
    gpus: int = 0
    """GPUs per run."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the engine, as typed."""


Engine: TypeAlias = Callable[[Sequence[Job], Resources], Iterator[JobReport]]


def run_jobs(
    runs: Sequence[Job], out: Path, engine: Engine, resources: Resources, *, force: bool = False
) -> Generator[JobReport]:
    """Compute the runs that are not stored, and yield a report for every run.

    Lost and busy runs are tried once more.
    """
    jobs = {
        run.id: replace(run, out=str(out.absolute()), folder=str(Path.cwd()), force=force)
        for run in runs
    }
    stored = dict.fromkeys(id_ for id_ in jobs if not force and is_stored(out / id_))
    yield from (JobReport(id=id_, status="stored") for id_ in stored)
    todo = [job for job in jobs.values() if job.id not in stored]
    for waits_for_others in (False, True):
        retries: list[Job] = []
        for report in engine(todo, resources) if todo else ():
            if report.status not in ("busy", "lost"):
                yield report
            elif waits_for_others:
                yield replace(report, status="failed")
            else:
                retries.append(replace(jobs[report.id], waits_for_others=True))
        todo = retries


def find_engine(name: str, options: Iterable[str] = ()) -> Engine:
    """Find an engine by name.

    Raises:
        UserError: the engine or an option is unknown, or its package is not installed.
    """
    require_known("engine", name, ENGINES)
    found, package, known = ENGINES[name]
    if package and find_spec(package) is None:
        fault = f"The engine {name} needs the package {package}, which is not installed."
        raise UserError(fault, f"Run: pip install {package} (or ttabench[{name}]).")
    for option in options:
        require_known(f"option of the engine {name}", option, known)
    return found


def _local(jobs: Sequence[Job], resources: Resources) -> Iterator[JobReport]:
    """Local worker processes, each for many runs; a killed process is replaced."""
    count = min(resources.jobs, len(jobs))
    threads = resources.threads or (
        max(1, (available_cores() or 1) // count) if count > 1 else None
    )
    environments, children, free_slots = (
        split_gpus(count, resources.gpus),
        dict[int, WorkerProcess](),
        SimpleQueue[int](),
    )
    for slot in range(count):
        free_slots.put(slot)

    def run_in_child(job: Job) -> JobReport:
        slot = free_slots.get()
        if slot not in children:
            children[slot] = WorkerProcess(_child_main, ("ttabench.lm.model",), environments[slot])
        *_, report = children[slot].ask(([job], threads))
        if isinstance(report, ProcessDeath):
            children.pop(slot).close()
            detail = f"ended with code {report.code}: {report.last_line}"
            if report.code == -signal.SIGKILL:
                detail = "was killed (signal 9). The system may have run out of memory."
            report = JobReport(id=job.id, status="lost", reason=f"Its process {detail}")
        free_slots.put(slot)
        assert isinstance(report, JobReport)
        return report

    with ThreadPoolExecutor(count) as pool:
        try:
            for future in as_completed([pool.submit(run_in_child, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(children.values()):
                child.close()


def split_gpus(count: int, gpus: int) -> list[dict[str, str]]:
    """Return the environment variables of `count` processes, with `gpus` visible GPUs each.

    Raises:
        UserError: there are not enough GPUs.
    """
    if not gpus:
        return [{}] * count
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_gpus is None:
        import torch

        visible_gpus = ",".join(map(str, range(torch.cuda.device_count())))
    devices = [device for device in visible_gpus.split(",") if device]
    if count * gpus > len(devices):
        fault = f"--jobs {count} with {gpus} GPUs each need more than the {len(devices)} GPUs here."
        raise UserError(fault, "Use fewer --jobs, or a smaller --gpus-per-run.")
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(devices[index * gpus : (index + 1) * gpus])}
        for index in range(count)
    ]


def _ray(jobs: Sequence[Job], resources: Resources) -> Iterator[JobReport]:
    """Ray tasks, one per run; `resources.jobs` applies only to a local cluster, which ends with
    us."""
    import ray

    address = resources.options.get("address", "auto")
    where = (
        {"num_cpus": resources.jobs * (resources.threads or 1)}
        if address == "local"
        else {"address": address}
    )
    # Ray reports lost processes on standard output, which is reserved for results
    with redirect_stdout(sys.stderr):
        try:
            ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            hint = "Run `ray start --head`, or set address=HOST:PORT or address=local."
            raise UserError(
                f"No Ray cluster can be reached at {address} ({_one_line(error)}).", hint
            ) from None
        task = ray.remote(num_cpus=resources.threads or 1, num_gpus=resources.gpus, max_retries=0)(
            run_job_list
        )
        tasks = {task.remote([job], resources.threads): job for job in jobs}
        try:
            while tasks:
                (done, *_), _ = ray.wait(list(tasks), num_returns=1)
                yield from _results(partial(ray.get, done), [tasks.pop(done)])
        finally:
            ray.shutdown()


def _slurm(jobs: Sequence[Job], resources: Resources) -> Iterator[JobReport]:
    """A job array through submitit; each of its tasks has a share of the runs.

    A lost run is retried in a task of its own, because a crash loses all runs of a task.
    """
    import submitit

    options = dict(resources.options)
    count = len(jobs) if jobs[0].waits_for_others else min(resources.jobs, len(jobs))
    # a share has adjacent jobs, which have the same base model
    shares = [
        list(jobs[len(jobs) * index // count : len(jobs) * (index + 1) // count])
        for index in range(count)
    ]
    cluster = options.pop("cluster", "slurm")
    python = f"{quote(sys.executable)} -P"  # -P: imports nothing from the current folder
    try:
        folder = Path(jobs[0].out) / ".submitit"
        executor = submitit.AutoExecutor(
            folder, cluster=cluster, local_python=python, slurm_python=python
        )
        numbers = {
            name: int(options.pop(name)) for name in ("timeout_min", "mem_gb") if name in options
        }
        executor.update_parameters(
            name="ttabench",
            cpus_per_task=resources.threads or 1,
            gpus_per_node=resources.gpus,
            slurm_array_parallelism=resources.jobs,
            **{"timeout_min": 24 * 60, **numbers},
            **{f"slurm_{name}": value for name, value in options.items()},
        )
        tasks = executor.map_array(run_job_list, shares, [resources.threads] * count)
    except Exception as error:
        fault = f"The cluster {cluster} does not accept jobs ({_one_line(error)})."
        raise UserError(fault, "Fix --engine-set, or use --engine-set cluster=local.") from None
    try:
        for task, share in zip(tasks, shares, strict=True):
            yield from _results(task.result, share)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()


def _results(result: Callable[[], list[JobReport]], share: Sequence[Job]) -> list[JobReport]:
    """Reports of a task's runs; they are "lost" if its process or machine disappeared."""
    try:
        return result()
    except Exception as error:  # Ray and submitit raise various errors for a task without result
        reason = f"Its task ended ({type(error).__name__}: {_one_line(error)})"
        return [JobReport(id=job.id, status="lost", reason=reason) for job in share]


def _one_line(error: object) -> str:
    """The text on one line, at most 300 characters, without warnings of a dead process's tracker."""
    lines = [line for line in str(error).splitlines() if "resource_tracker" not in line]
    return " ".join(" ".join(lines).split())[:300]


ENGINES: Mapping[str, tuple[Engine, str, tuple[str, ...]]] = {
    "local": (_local, "", ()),
    "ray": (_ray, "ray", ("address",)),
    "slurm": (
        _slurm,
        "submitit",
        ("cluster", "partition", "qos", "account", "constraint", "timeout_min", "mem_gb"),
    ),
}
"""(engine, required package, options) by name."""


def run_job(job: Job) -> JobReport:
    """Compute or load a run; the report has the reason of any failure."""
    started, status, reason = time.monotonic(), "failed", ""
    try:
        os.chdir(job.folder)
        # another process may have stored it since the sweep began
        if not job.force and is_stored(Path(job.out) / job.id):
            return JobReport(id=job.id, status="stored")
        plan = make_plan(job.request, job.seed)
        if plan.config.identity() != job.id:
            raise UserError("Its inputs changed since the sweep began.", "Run the command again.")
        if not job.waits_for_others and is_locked(Path(job.out) / job.id):
            status = "busy"
        else:
            status = execute(plan, MODEL_CACHE, Path(job.out), force=job.force).status
    except UserError as error:
        reason = _one_line(error)
    # code and files of others may raise anything; the other runs must continue
    except Exception as error:
        is_out_of_memory = environment.is_out_of_memory(error)
        reason = _one_line(
            environment.out_of_memory_error(OUT_OF_MEMORY_HINT)
            if is_out_of_memory
            else f"{type(error).__name__}: {error}"
        )
    seconds = time.monotonic() - started
    return JobReport(id=job.id, status=status, reason=reason, seconds=seconds)  # type: ignore[arg-type]


def run_job_list(jobs: list[Job], threads: int | None) -> list[JobReport]:
    """Compute runs with this number of threads, in a process of their own."""
    use_threads(threads)
    return [run_job(job) for job in jobs]


def _child_main(request: tuple[list[Job], int | None], send: SendMessage) -> None:
    send(*run_job_list(*request))
