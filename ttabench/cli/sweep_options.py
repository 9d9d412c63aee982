"""Options of `sweep` alone: lists in place of a method, a task, a model and a seed, and engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
