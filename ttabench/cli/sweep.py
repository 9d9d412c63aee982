"""`ttabench sweep`: what was typed, or stands in a file, as a suite; then its runs, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.core.declared import HOW, RUN, WHAT
from ttabench.core.errors import UserError
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.core.types import Json

WHERE = "Where it runs"


@o.takes("said", RunRequest, without=("method", "task", "model", "keep", "keep_tokens"), typed_only=True)
def sweep(
    said: Mapping[str, Any],
    suite: Annotated[
        Path | None, typer.Argument(metavar="[SUITE.yaml]", help="A file that names the runs.", show_default=False)
    ] = None,
    methods: Annotated[
        str,
        o.option(RUN, "Methods, separated by commas.", "--methods", "-m", autocompletion=o.complete_method),
    ] = "",
    tasks: Annotated[
        str, o.option(RUN, "Tasks, separated by commas.", "--tasks", "-t", autocompletion=o.complete_task)
    ] = "",
    models: Annotated[
        str,
        o.option(RUN, "Base LMs, separated by commas. (default: nano)", "--models", autocompletion=o.complete_model),
    ] = "",
    seeds: Annotated[str, o.option(WHAT, "Seeds, one run each: 0,1,2. (default: 0)")] = "",
    keep: Annotated[
        str,
        o.option(RUN, "Shares of the context to keep, one run each: 0.1,0.2,0.5. Methods without a budget run once.",
                 "--keep"),
    ] = "",
    keep_tokens: Annotated[
        str, o.option(RUN, "Tokens of the context to keep, one run each: 128,256.", "--keep-tokens")
    ] = "",
    swap_state: o.SwapState = False,
    jobs: o.Jobs = 1,
    threads: o.Threads = None,
    gpus_per_run: Annotated[
        float, o.option(WHERE, "GPUs for each run; below 1, several runs share one.", min=0, max=64)
    ] = 0.0,
    engine: Annotated[str, o.option(WHERE, "local, ray or slurm.", "--engine")] = "local",
    address: Annotated[
        str, o.option(WHERE, "With --engine ray: address of the cluster; auto finds a running one.")
    ] = "",
    cluster: Annotated[
        str, o.option(WHERE, "With --engine slurm: slurm, or local for processes of this machine.")
    ] = "",
    engine_set: Annotated[
        list[str] | None,
        o.option(WHERE, "An option of the engine, key=value (partition=gpu); repeat for more.", "--engine-set"),
    ] = None,
    shard: Annotated[
        str, o.option(WHERE, "Only part I of N: every N-th run, from the I-th on.", metavar="I/N")
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
    schema: Annotated[bool, o.option(HOW, "Print the JSON schema of a suite.", "--schema")] = False,
) -> None:  # fmt: skip
    """Run a grid of methods, tasks, models, seeds and settings: what is stored is not run again.

    The runs stand in SUITE.yaml (--schema prints what it may say), or are typed; options beside a file take the place
    of what it says of all runs. A run that fails is a row with its reason, and the others go on; the command then
    leaves with 1.
    """
    if schema:
        from ttabench.sweep.suite import schema as of_suite
        from ttabench.terminal import render

        render.print_json(of_suite())
        return
    from ttabench.cli import sweep_runs
    from ttabench.sweep.grid import cells
    from ttabench.sweep.planning import planned, share

    typed = _typed(said, seeds, swap_state, methods=methods, tasks=tasks, models=models)
    content = _suite(suite, {**typed, **_budgets(keep, keep_tokens)})
    try:
        runs = planned(cells(content))
    except UserError as error:
        raise UserError(f"{suite}: {error.what}" if suite else error.what, error.hint) from None
    runs = share(runs, shard) if shard else runs
    if dry_run:
        sweep_runs.dry_run(runs, out, json=json, quiet=quiet)
        return
    from ttabench.core.typed import assignments
    from ttabench.sweep import engines
    from ttabench.sweep.driver import swept

    own = {name: text for name, text in (("address", address), ("cluster", cluster)) if text}
    options = {**assignments(engine_set or (), "--engine-set"), **own}
    resources = engines.Resources(jobs=jobs, threads=threads, gpus=gpus_per_run, options=options)
    reports = swept(runs, out, engines.engine(engine, options), resources, force=force)
    if not sweep_runs.run(runs, reports, out, json=json, quiet=quiet):
        raise typer.Exit(1)


def _typed(fields: Mapping[str, Any], seeds: str, swap_state: bool, **lists: str) -> dict[str, Any]:
    """The typed options, under the keys of a suite."""
    from ttabench.core.typed import whole_numbers
    from ttabench.profiling.job import method_names
    from ttabench.sweep.suite import SWAP, as_said

    typed = {**as_said(fields), **{name: method_names(text, ()) for name, text in lists.items() if text}}
    typed |= {"seeds": list(dict.fromkeys(whole_numbers("--seeds", seeds)))} if seeds else {}
    return typed | ({SWAP: True} if swap_state else {})


def _budgets(keep: str, keep_tokens: str) -> dict[str, Json]:
    """Those that were typed, as lists."""
    from ttabench.core.typed import whole_numbers

    try:
        shares = [float(part) for part in keep.split(",")] if keep else []
    except ValueError:
        raise UserError(f"--keep {keep[:40]!r} is not a list of shares.", "Write --keep 0.1,0.2.") from None
    budgets = {"keep": shares, "keep_tokens": whole_numbers("--keep-tokens", keep_tokens)}
    return {name: list(dict.fromkeys(values)) for name, values in budgets.items() if values}


def _suite(file: Path | None, content: Mapping[str, Json]) -> Json:
    """The suite of a file, overridden by the options typed beside it."""
    from ttabench.sweep.file import read
    from ttabench.sweep.suite import BUDGETS

    if file is None:
        if missing := [name for name in ("methods", "tasks") if name not in content]:
            hint = "Give SUITE.yaml, or --methods none,icl --tasks streamingqa."
            raise UserError(f"No {' and no '.join(missing)} are named.", hint)
        return dict(content)
    data = read(file)
    if not isinstance(data, dict):
        return data
    replaced = {*content, *(BUDGETS if {*BUDGETS} & {*content} else ())}
    return {**{key: value for key, value in data.items() if key not in replaced}, **content}
