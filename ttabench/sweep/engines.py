"""A sweep, and where its runs are made: processes of this machine, a Ray cluster, or a job array of Slurm.

An engine gives a `JobReport` of every job, in any order, and decides nothing else: what is stored is read from the results
folder, and two sweeps that meet in one folder keep out of each other's way by the locks in it.
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
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import is_locked
from ttabench.records.schema import is_stored
from ttabench.run.evaluation import MODEL_CACHE, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

OUT_OF_MEMORY_HINT = (
    "Take a smaller batch_size, model or task_set, or run fewer at a time (--jobs)."
)
RunStatus = Literal["stored", "continued", "new", "failed", "busy", "lost"]
"""Of a run: the first three are stored; busy: another process makes it; lost: the process that made it ended."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep, as it travels to where it is made."""

    id: str
    request: RunRequest
    seed: int
    base: str
    """Base model that a process has to load for it, as text; runs of one base stand together."""
    method: str
    """With what was said of it alone."""
    task: str
    out: str = ""
    """Folder of all runs."""
    folder: str = ""
    """Where the command was given: relative paths begin there."""
    force: bool = False
    notes: tuple[str, ...] = ()
    """Caveats of its method."""
    waits_for_others: bool = False
    """Waits where another process is making this run; else that is a report."""

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.method} on {self.task} under {self.request.base_name} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The outcome of a run in a sweep."""

    id: str
    status: RunStatus
    reason: str = ""
    """One line, of what did not work."""
    seconds: float = 0.0
    """Of this run, loading its base model included."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of a sweep's runs."""

    jobs: int = 1
    """Runs at a time."""
    threads: int | None = None
    """Of a run; None leaves torch's own choice."""
    gpus: int = 0
    """Of a run."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the engine, as typed."""


Engine: TypeAlias = Callable[[Sequence[Job], Resources], Iterator[JobReport]]


def run_jobs(
    runs: Sequence[Job], out: Path, engine: Engine, resources: Resources, *, force: bool = False
) -> Generator[JobReport]:
    """Make these runs where they are not stored; for every one a report. What was lost, or busy, is made once more."""
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
    """The engine of this name; its package is missing, or it has no such option: a UserError."""
    if name not in ENGINES:
        raise UnknownName("engine", name, list(ENGINES))
    found, package, known = ENGINES[name]
    if package and find_spec(package) is None:
        fault = f"The engine {name} needs the package {package}, which is not installed."
        raise UserError(fault, f"Install it: pip install {package} (or ttabench[{name}]).")
    for option in options:
        if option not in known:
            raise UnknownName(f"option of the engine {name}", option, list(known))
    return found


def _local(jobs: Sequence[Job], resources: Resources) -> Iterator[JobReport]:
    """Processes of this machine, so many at a time, each of which takes many runs; one that is killed is replaced."""
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
        *_, report = children[slot].ask((job, threads))
        if isinstance(report, ProcessDeath):
            children.pop(slot).close()
            detail = f"ended with code {report.code}: {report.last_line}"
            if report.code == -signal.SIGKILL:
                detail = "was killed (signal 9), as a system does that runs out of memory."
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
    """The environment of each of so many processes, which names the GPUs that it may use."""
    if not gpus:
        return [{}] * count
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_gpus is None:
        import torch

        visible_gpus = ",".join(map(str, range(torch.cuda.device_count())))
    devices = [device for device in visible_gpus.split(",") if device]
    if count * gpus > len(devices):
        fault = f"{count} runs at a time with {gpus} GPUs each are more than the {len(devices)} GPUs here."
        raise UserError(fault, "Give fewer --jobs, or less to --gpus-per-run.")
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(devices[index * gpus : (index + 1) * gpus])}
        for index in range(count)
    ]


def _ray(jobs: Sequence[Job], resources: Resources) -> Iterator[JobReport]:
    """A run is a task of a Ray cluster; `resources.jobs` counts only on one of this machine, which ends with us."""
    import ray

    address = resources.options.get("address", "auto")
    where = (
        {"num_cpus": resources.jobs * (resources.threads or 1)}
        if address == "local"
        else {"address": address}
    )
    with redirect_stdout(
        sys.stderr
    ):  # Ray tells of lost processes there, and standard output is for results
        try:
            ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            hint = "Start one: ray start --head; or set address=HOST:PORT, or local."
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
    """A job array through submitit, each of whose tasks takes its share of the runs.

    Of jobs that were lost a task takes one: the others of a task are lost with the one that ends it.
    """
    import submitit

    options, count = (
        dict(resources.options),
        len(jobs) if jobs[0].waits_for_others else min(resources.jobs, len(jobs)),
    )
    # neighbours, which have the same base model
    shares = [
        list(jobs[len(jobs) * index // count : len(jobs) * (index + 1) // count])
        for index in range(count)
    ]
    cluster = options.pop("cluster", "slurm")
    python = f"{quote(sys.executable)} -P"  # which imports nothing from the current folder
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
        fault = f"The cluster {cluster} takes no jobs ({_one_line(error)})."
        raise UserError(fault, "Mend --engine-set, or try --engine-set cluster=local.") from None
    try:
        for task, share in zip(tasks, shares, strict=True):
            yield from _results(task.result, share)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()


def _results(result: Callable[[], list[JobReport]], share: Sequence[Job]) -> list[JobReport]:
    """The reports of a task's runs; where its process or machine went away, they are lost."""
    try:
        return result()
    except Exception as error:  # whatever Ray or submitit tells of a task that has no result
        reason = f"The task that made it ended ({type(error).__name__}: {_one_line(error)})"
        return [JobReport(id=job.id, status="lost", reason=reason) for job in share]


def _one_line(error: object) -> str:
    """A reason on one line, 300 characters of it."""
    return " ".join(str(error).split())[:300]


ENGINES: Mapping[str, tuple[Engine, str, tuple[str, ...]]] = {
    "local": (_local, "", ()),
    "ray": (_ray, "ray", ("address",)),
    "slurm": (
        _slurm,
        "submitit",
        ("cluster", "partition", "qos", "account", "constraint", "timeout_min", "mem_gb"),
    ),
}
"""By name: the engine, the package that it needs, and its options."""


def run_job(job: Job) -> JobReport:
    """Make a run, or find it; whatever goes wrong is the reason in the report."""
    started, status, reason = time.monotonic(), "failed", ""
    try:
        os.chdir(job.folder)
        if not job.force and is_stored(
            Path(job.out) / job.id
        ):  # by another process, since the sweep began
            return JobReport(id=job.id, status="stored")
        plan = make_plan(job.request, job.seed)
        if plan.config.identity() != job.id:
            raise UserError(
                "What it reads has changed since the sweep began.", "Give the same command again."
            )
        if not job.waits_for_others and is_locked(Path(job.out) / job.id):
            status = "busy"
        else:
            status = execute(plan, MODEL_CACHE, Path(job.out), force=job.force).status
    except UserError as error:
        reason = _one_line(error)
    except (
        Exception
    ) as error:  # a method or a file of somebody else may do anything; the other runs go on
        is_out_of_memory = environment.is_out_of_memory(error)
        reason = _one_line(
            environment.out_of_memory_error(OUT_OF_MEMORY_HINT)
            if is_out_of_memory
            else f"{type(error).__name__}: {error}"
        )
    return JobReport(id=job.id, status=status, reason=reason, seconds=time.monotonic() - started)  # type: ignore[arg-type]


def run_job_list(jobs: list[Job], threads: int | None) -> list[JobReport]:
    """Make runs with so many threads in a process of their own."""
    use_threads(threads)
    return [run_job(job) for job in jobs]


def _child_main(request: tuple[Job, int | None], tell: SendMessage) -> None:
    tell(*run_job_list([request[0]], request[1]))
