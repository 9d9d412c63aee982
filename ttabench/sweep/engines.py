"""A sweep, and where its runs are made: processes of this machine, a Ray cluster, or a job array of Slurm.

An engine gives a `Report` of every job, in any order, and decides nothing else: what is stored is told from the folder
of the results, and two sweeps that meet in one folder keep out of each other's way by the locks in it.
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
from ttabench.core.child import Child, Death, Tell
from ttabench.core.environment import cores, use_threads
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import held
from ttabench.records.schema import is_stored
from ttabench.run.evaluation import MODELS, execute
from ttabench.run.plan import make_plan
from ttabench.run.request import RunRequest

FITS = "Take a smaller batch_size, model or task_set, or run fewer at a time (--jobs)."
State = Literal["stored", "continued", "new", "failed", "busy", "lost"]
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
    patient: bool = False
    """Waits where another process is making this run; else that is a report."""

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.method} on {self.task} under {self.request.base_name} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a run in a sweep."""

    id: str
    state: State
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


Engine: TypeAlias = Callable[[Sequence[Job], Resources], Iterator[Report]]


def swept(
    runs: Sequence[Job], out: Path, engine: Engine, resources: Resources, *, force: bool = False
) -> Generator[Report]:
    """Make these runs where they are not stored; for every one a report. What was lost, or busy, is made once more."""
    jobs = {run.id: replace(run, out=str(out.absolute()), folder=str(Path.cwd()), force=force) for run in runs}
    stored = dict.fromkeys(id_ for id_ in jobs if not force and is_stored(out / id_))
    yield from (Report(id=id_, state="stored") for id_ in stored)
    todo = [job for job in jobs.values() if job.id not in stored]
    for patient in (False, True):
        again: list[Job] = []
        for report in engine(todo, resources) if todo else ():
            if report.state not in ("busy", "lost"):
                yield report
            elif patient:
                yield replace(report, state="failed")
            else:
                again.append(replace(jobs[report.id], patient=True))
        todo = again


def engine(name: str, options: Iterable[str] = ()) -> Engine:
    """The engine of this name; its package is missing, or it has no such option: a UserError."""
    if name not in ENGINES:
        raise UnknownName("engine", name, list(ENGINES))
    made, package, known = ENGINES[name]
    if package and find_spec(package) is None:
        fault = f"The engine {name} needs the package {package}, which is not installed."
        raise UserError(fault, f"Install it: pip install {package} (or ttabench[{name}]).")
    for option in options:
        if option not in known:
            raise UnknownName(f"option of the engine {name}", option, list(known))
    return made


def _local(jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
    """Processes of this machine, so many at a time, each of which takes many runs; one that is killed is replaced."""
    count = min(resources.jobs, len(jobs))
    threads = resources.threads or (max(1, (cores() or 1) // count) if count > 1 else None)
    environments, children, free = shared_gpus(count, resources.gpus), dict[int, Child](), SimpleQueue[int]()
    for place in range(count):
        free.put(place)

    def made(job: Job) -> Report:
        place = free.get()
        if place not in children:
            children[place] = Child(_made, ("ttabench.lm.model",), environments[place])
        *_, report = children[place].ask((job, threads))
        if isinstance(report, Death):
            children.pop(place).close()
            how = f"ended with code {report.code}: {report.said}"
            if report.code == -signal.SIGKILL:
                how = "was killed (signal 9), as a system does that runs out of memory."
            report = Report(id=job.id, state="lost", reason=f"Its process {how}")
        free.put(place)
        assert isinstance(report, Report)
        return report

    with ThreadPoolExecutor(count) as pool:
        try:
            for future in as_completed([pool.submit(made, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(children.values()):
                child.close()


def shared_gpus(count: int, gpus: int) -> list[dict[str, str]]:
    """The environment of each of so many processes, which names the GPUs that it may use."""
    if not gpus:
        return [{}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        import torch

        named = ",".join(map(str, range(torch.cuda.device_count())))
    devices = [device for device in named.split(",") if device]
    if count * gpus > len(devices):
        fault = f"{count} runs at a time with {gpus} GPUs each are more than the {len(devices)} GPUs here."
        raise UserError(fault, "Give fewer --jobs, or less to --gpus-per-run.")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(devices[at * gpus : (at + 1) * gpus])} for at in range(count)]


def _ray(jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
    """A run is a task of a Ray cluster; `resources.jobs` counts only on one of this machine, which ends with us."""
    import ray

    address = resources.options.get("address", "auto")
    where = {"num_cpus": resources.jobs * (resources.threads or 1)} if address == "local" else {"address": address}
    with redirect_stdout(sys.stderr):  # Ray tells of lost processes there, and standard output is for results
        try:
            ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            hint = "Start one: ray start --head; or set address=HOST:PORT, or local."
            raise UserError(f"No Ray cluster can be reached at {address} ({_line(error)}).", hint) from None
        task = ray.remote(num_cpus=resources.threads or 1, num_gpus=resources.gpus, max_retries=0)(take_all)
        tasks = {task.remote([job], resources.threads): job for job in jobs}
        try:
            while tasks:
                (done, *_), _ = ray.wait(list(tasks), num_returns=1)
                yield from _results(partial(ray.get, done), [tasks.pop(done)])
        finally:
            ray.shutdown()


def _slurm(jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
    """A job array through submitit, each of whose tasks takes its share of the runs.

    Of jobs that were lost a task takes one: the others of a task are lost with the one that ends it.
    """
    import submitit

    options, count = dict(resources.options), len(jobs) if jobs[0].patient else min(resources.jobs, len(jobs))
    # neighbours, which have the same base model
    shares = [list(jobs[len(jobs) * at // count : len(jobs) * (at + 1) // count]) for at in range(count)]
    cluster = options.pop("cluster", "slurm")
    python = f"{quote(sys.executable)} -P"  # which imports nothing from the current folder
    try:
        folder = Path(jobs[0].out) / ".submitit"
        executor = submitit.AutoExecutor(folder, cluster=cluster, local_python=python, slurm_python=python)
        numbers = {name: int(options.pop(name)) for name in ("timeout_min", "mem_gb") if name in options}
        executor.update_parameters(
            name="ttabench", cpus_per_task=resources.threads or 1, gpus_per_node=resources.gpus,
            slurm_array_parallelism=resources.jobs, **{"timeout_min": 24 * 60, **numbers},
            **{f"slurm_{name}": value for name, value in options.items()},
        )  # fmt: skip
        tasks = executor.map_array(take_all, shares, [resources.threads] * count)
    except Exception as error:
        fault = f"The cluster {cluster} takes no jobs ({_line(error)})."
        raise UserError(fault, "Mend --engine-set, or try --engine-set cluster=local.") from None
    try:
        for task, share in zip(tasks, shares, strict=True):
            yield from _results(task.result, share)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()


def _results(result: Callable[[], list[Report]], share: Sequence[Job]) -> list[Report]:
    """The reports of a task's runs; where its process or machine went away, they are lost."""
    try:
        return result()
    except Exception as error:  # whatever Ray or submitit tells of a task that has no result
        reason = f"The task that made it ended ({type(error).__name__}: {_line(error)})"
        return [Report(id=job.id, state="lost", reason=reason) for job in share]


def _line(error: object) -> str:
    """A reason on one line, 300 characters of it."""
    return " ".join(str(error).split())[:300]


ENGINES: Mapping[str, tuple[Engine, str, tuple[str, ...]]] = {
    "local": (_local, "", ()),
    "ray": (_ray, "ray", ("address",)),
    "slurm": (_slurm, "submitit", ("cluster", "partition", "qos", "account", "constraint", "timeout_min", "mem_gb")),
}
"""By name: the engine, the package that it needs, and its options."""


def take(job: Job) -> Report:
    """Make a run, or find it; whatever goes wrong is the reason in the report."""
    began, state, reason = time.monotonic(), "failed", ""
    try:
        os.chdir(job.folder)
        if not job.force and is_stored(Path(job.out) / job.id):  # by another process, since the sweep began
            return Report(id=job.id, state="stored")
        plan = make_plan(job.request, job.seed)
        if plan.config.identity() != job.id:
            raise UserError("What it reads has changed since the sweep began.", "Give the same command again.")
        if not job.patient and held(Path(job.out) / job.id):
            state = "busy"
        else:
            state = execute(plan, MODELS, Path(job.out), force=job.force).how
    except UserError as error:
        reason = _line(error)
    except Exception as error:  # a method or a file of somebody else may do anything; the other runs go on
        full = environment.out_of_memory(error)
        reason = _line(environment.memory_error(FITS) if full else f"{type(error).__name__}: {error}")
    return Report(id=job.id, state=state, reason=reason, seconds=time.monotonic() - began)  # type: ignore[arg-type]


def take_all(jobs: list[Job], threads: int | None) -> list[Report]:
    """Make runs with so many threads in a process of their own."""
    use_threads(threads)
    return [take(job) for job in jobs]


def _made(request: tuple[Job, int | None], tell: Tell) -> None:
    tell(*take_all([request[0]], request[1]))
