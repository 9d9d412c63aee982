"""The options of `sweep`: all that `eval` takes, lists in place of a method, a task, a model and a seed, and engines.

app.command("sweep")(as_command(eval_, sweep))        an option that is new in `eval` is one of `sweep`, too
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ttabench.cli.completion import complete_method, complete_model, complete_task
from ttabench.core.declared import HOW, RUN, WHAT

WHERE = "Where it runs"
SuiteFile = Annotated[
    Path | None, typer.Argument(metavar="[SUITE.yaml]", help="A file that names the runs.", show_default=False)
]
SweptMethods = Annotated[
    str,
    typer.Option("--methods", "-m", help="Methods, separated by commas.", show_default=False, rich_help_panel=RUN,
                 autocompletion=complete_method),
]  # fmt: skip
SweptTasks = Annotated[
    str,
    typer.Option("--tasks", "-t", help="Tasks, separated by commas.", show_default=False, rich_help_panel=RUN,
                 autocompletion=complete_task),
]  # fmt: skip
SweptModels = Annotated[
    str,
    typer.Option("--models", help="Base LMs, separated by commas. (default: nano)", show_default=False,
                 rich_help_panel=RUN, autocompletion=complete_model),
]  # fmt: skip
SweptSeeds = Annotated[
    str,
    typer.Option(help="Seeds, one run each: 0,1,2. (default: 0)", show_default=False, rich_help_panel=WHAT),
]  # fmt: skip
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=1024, help="Runs at a time.", rich_help_panel=WHERE)]
GpusPerRun = Annotated[
    float,
    typer.Option(min=0, max=64, help="GPUs of a run; of less than one, several share it.", rich_help_panel=WHERE),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local, ray, slurm, or one of another package.", rich_help_panel=WHERE)
]
EngineSet = Annotated[
    list[str] | None,
    typer.Option("--engine-set", help="An option of the engine, key=value (partition=gpu); repeat for more.",
                 rich_help_panel=WHERE),
]  # fmt: skip
Address = Annotated[
    str, typer.Option(help="With --engine ray: of the cluster; auto finds it.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Cluster = Annotated[
    str, typer.Option(help="With --engine slurm: slurm, or local to try it out.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Shard = Annotated[
    str, typer.Option(metavar="I/N", help="Only every N-th run, from the I-th on.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a suite.", rich_help_panel=HOW)]
LEFT_OUT = ("method", "task", "model", "seed", "seeds", "memory_limit")
"""Options of `eval` that a sweep has otherwise, or not at all."""
BEFORE = {"suite": (SuiteFile, None), "methods": (SweptMethods, ""), "tasks": (SweptTasks, ""),
          "models": (SweptModels, ""), "seeds": (SweptSeeds, "")}  # fmt: skip
AFTER = {"jobs": (Jobs, 1), "gpus_per_run": (GpusPerRun, 0.0), "engine": (EngineName, "local"),
         "address": (Address, ""), "cluster": (Cluster, ""), "engine_set": (EngineSet, None), "shard": (Shard, ""),
         "schema": (Schema, False)}  # fmt: skip


def as_command(like: Callable[..., None], run: Callable[[typer.Context, dict[str, Any]], None]) -> Callable[..., None]:
    """A command that takes the options of another one, and these, and hands all of them over by name.

    Args:
        like: the command whose options they are.
        run: is given the context and what was typed.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [
        parameter.replace(kind=kind)
        for name, parameter in inspect.signature(like, eval_str=True).parameters.items()
        if name not in LEFT_OUT
    ]
    before, after = (
        [inspect.Parameter(name, kind, annotation=hint, default=default) for name, (hint, default) in given.items()]
        for given in (BEFORE, AFTER)
    )
    context = inspect.Parameter("context", kind, annotation=typer.Context)

    def command(context: typer.Context, **typed: Any) -> None:
        run(context, typed)

    parameters = [context, *before, *shared, *after]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command
