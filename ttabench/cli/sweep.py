"""`ttabench sweep`: what was typed, or stands in a file, as a suite; then its runs, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.completion import complete_method, complete_model, complete_task
from ttabench.cli.declaring import takes
from ttabench.core.declared import HOW, RUN, WHAT
from ttabench.core.errors import UserError
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.sweep.file import Read


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
    typer.Option(min=0, max=64, help="GPUs for each run; below 1, several runs share one.", rich_help_panel=WHERE),
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
    str, typer.Option(help="With --engine ray: address of the cluster; auto finds a running one.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Cluster = Annotated[
    str, typer.Option(help="With --engine slurm: slurm, or local for processes of this machine.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Shard = Annotated[
    str, typer.Option(metavar="I/N", help="Only part I of N: every N-th run, from the I-th on.", show_default=False,
                      rich_help_panel=WHERE),
]  # fmt: skip
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a suite.", rich_help_panel=HOW)]


@takes("said", RunRequest, without=("method", "task", "model"), typed_only=True)
def sweep(
    said: Mapping[str, Any],
    suite: SuiteFile = None,
    methods: SweptMethods = "",
    tasks: SweptTasks = "",
    models: SweptModels = "",
    seeds: SweptSeeds = "",
    swap_state: o.SwapState = False,
    jobs: Jobs = 1,
    threads: o.Threads = None,
    gpus_per_run: GpusPerRun = 0.0,
    engine: EngineName = "local",
    address: Address = "",
    cluster: Cluster = "",
    engine_set: EngineSet = None,
    shard: Shard = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
    schema: Schema = False,
) -> None:
    """Run a grid of methods, tasks, models, seeds and settings: what is stored is not run again.

    The runs stand in SUITE.yaml (--schema prints what it may say), or are typed; options beside a file take the place
    of what it says of all runs. A run that fails is a row with its reason, and the others go on; the command then
    leaves with 1.
    """
    from ttabench.cli.showing import Showing
    from ttabench.terminal import render

    if schema:
        from ttabench.sweep.suite import schema as of_suite

        render.print_json(of_suite())
        return
    from ttabench.sweep.grid import cells
    from ttabench.sweep.planning import planned, share

    typed = _typed(said, seeds, swap_state, methods=methods, tasks=tasks, models=models)
    read = _suite(suite, typed)
    runs = planned(cells(read), read)
    runs = share(runs, shard) if shard else runs
    showing = Showing(json=json, quiet=quiet)
    if dry_run:
        from ttabench.cli.sweep_dry_run import dry_run as show_planned

        show_planned(runs, out, showing, threads=threads)
        return
    from ttabench.cli import sweep_runs
    from ttabench.sweep.driver import Manner
    from ttabench.sweep.engines import Resources
    from ttabench.sweep.engines import engine as engine_of

    options = _engine_options(engine_set or (), address=address, cluster=cluster)
    resources = Resources(jobs=jobs, threads=threads, gpus=gpus_per_run, options=options)
    manner = Manner(out=out, engine=engine_of(engine), resources=resources, force=force)
    if not sweep_runs.run(runs, manner, showing):
        raise typer.Exit(1)


def _typed(fields: Mapping[str, Any], seeds: str, swap_state: bool, **lists: str) -> dict[str, Any]:
    """The typed options, under the keys of a suite."""
    from ttabench.core.typed import whole_numbers
    from ttabench.profiling.method_names import method_names
    from ttabench.sweep.options import SWAP, as_said

    typed = {**as_said(fields), **{name: method_names(text, ()) for name, text in lists.items() if text}}
    typed |= {"seeds": list(dict.fromkeys(whole_numbers("--seeds", seeds)))} if seeds else {}
    return typed | ({SWAP: True} if swap_state else {})


def _engine_options(typed: Sequence[str], **own: str) -> dict[str, Json]:
    """Those of --engine-set, and those that have an option of their own where they are given."""
    from ttabench.core.typed import assignments

    return {**assignments(typed, "--engine-set"), **{name: text for name, text in own.items() if text}}


def _suite(file: Path | None, content: Mapping[str, Json]) -> Read:
    """The suite of a file, overridden by the options typed beside it.

    Raises:
        UserError: the file is no suite; no runs are named.
    """
    from ttabench.sweep.file import Read, read

    if file is None:
        if missing := [name for name in ("methods", "tasks") if name not in content]:
            hint = "Give SUITE.yaml, or --methods none,icl --tasks streamingqa."
            raise UserError(f"No {' and no '.join(missing)} are named.", hint)
        return Read(dict(content))
    suite = read(file)
    if not isinstance(suite.data, dict):
        return suite
    lines = {place: line for place, line in suite.lines.items() if place[0] not in content}
    return replace(suite, data={**suite.data, **content}, lines=lines)
