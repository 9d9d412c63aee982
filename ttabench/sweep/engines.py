"""What an engine is: it takes runs and tells what becomes of them; `local`, `ray`, `slurm`, or one of another package.

    class Mine:
        def submit(self, jobs, resources):            # resources.jobs at once, each with its threads and GPUs
            for job in jobs:
                yield worker.take(job)                # a `Report`

    [project.entry-points."ttabench.engines"]
    mine = "my_package:Mine"

An engine decides where runs are made and nothing else: what is stored is told from the folder of the results, and two
engines that meet in one folder keep out of each other's way by the locks in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.plugins import offered
from ttabench.run.request import RunRequest

GROUP = "ttabench.engines"
"""Entry points of other packages: classes without arguments."""
ENGINES = {
    "local": "ttabench.sweep.local:Local",
    "ray": "ttabench.sweep.on_ray:OnRay",
    "slurm": "ttabench.sweep.on_slurm:OnSlurm",
}
PACKAGES = {"ray": "ray", "slurm": "submitit"}


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
    model: str = ""
    """Name of the base model, where those of the sweep differ."""
    out: str = ""
    """Folder of all runs."""
    folder: str = ""
    """Where the command was given: relative paths begin there."""
    force: bool = False
    patient: bool = False
    """Waits where another process is making this run; else that is a report."""

    @property
    def label(self) -> str:
        """The run in words, without a comma."""
        return f"{self.method} on {self.task}{self.model and f' under {self.model}'} seed {self.seed}"


State = Literal["stored", "continued", "new", "failed", "busy", "lost"]
"""Of a run: the first three are stored; busy: another process makes it; lost: the process that made it ended."""


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
    gpus: float = 0.0
    """Of a run."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the engine, as typed."""


class Engine(Protocol):
    """See the module."""

    def submit(self, jobs: Sequence[Job], resources: Resources) -> Iterator[Report]:
        """Make these runs; for every job, in any order, one report.

        Raises:
            UserError: nothing can be run there: a cluster that cannot be reached, an option that is not known.
        """
        ...


def engine(name: str) -> Engine:
    """The engine of this name."""
    if name in ENGINES:
        module, _, attribute = ENGINES[name].partition(":")
        try:
            engine_class: Any = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if name not in PACKAGES or error.name != PACKAGES[name]:
                raise
            fault = f"The engine {name} needs the package {PACKAGES[name]}, which is not installed."
            raise UserError(fault, f"Install it: pip install {PACKAGES[name]} (or ttabench[{name}]).") from None
    elif name in offered(GROUP):
        engine_class = offered(GROUP)[name].load()
    else:
        raise UnknownName("engine", name, [*ENGINES, *offered(GROUP)])
    made: Engine = engine_class()
    return made


def refuse_options(engine: Engine, name: str, options: Iterable[str]) -> None:
    """Refuse options that an engine does not know, as far as it says which it knows (`OPTIONS`)."""
    known = getattr(engine, "OPTIONS", None)
    for option in options:
        if known is not None and option not in known:
            raise UnknownName(f"option of the engine {name}", option, list(known))
