"""`ttabench sweep`: what was typed, or stands in a file, as a suite; then its runs, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ttabench.cli import options as o
from ttabench.cli import sweep_options as of_sweep
from ttabench.cli.declaring import takes
from ttabench.core.errors import UserError
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.sweep.file import Read


@takes("said", RunRequest, without=("method", "task", "model"), said=True)
def sweep(
    said: Mapping[str, Any],
    suite: of_sweep.SuiteFile = None,
    methods: of_sweep.SweptMethods = "",
    tasks: of_sweep.SweptTasks = "",
    models: of_sweep.SweptModels = "",
    seeds: of_sweep.SweptSeeds = "",
    swap_state: o.SwapState = False,
    jobs: of_sweep.Jobs = 1,
    threads: o.Threads = None,
    gpus_per_run: of_sweep.GpusPerRun = 0.0,
    engine: of_sweep.EngineName = "local",
    address: of_sweep.Address = "",
    cluster: of_sweep.Cluster = "",
    engine_set: of_sweep.EngineSet = None,
    shard: of_sweep.Shard = "",
    out: o.Out = o.DEFAULT_OUT,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
    schema: of_sweep.Schema = False,
) -> None:
    """Run a grid of methods, tasks, models, seeds and settings: what is stored is not run again.

    The runs stand in SUITE.yaml (--schema prints what it may say), or are typed; options beside a file take the place
    of what it says of all runs. A run that fails is a row with its reason, and the others go on; the command then
    leaves with 1.
    """
    from ttabench.cli.commands import Showing
    from ttabench.core.typed import assignments, whole_numbers
    from ttabench.terminal import render

    if schema:
        from ttabench.sweep.suite import schema as of_suite

        render.print_json(of_suite())
        return
    from ttabench.profiling.method_names import method_names
    from ttabench.sweep.grid import cells
    from ttabench.sweep.options import SWAP, as_said
    from ttabench.sweep.planning import planned, share

    lists = {"methods": methods, "tasks": tasks, "models": models}
    typed = {**as_said(said), **{name: method_names(text, ()) for name, text in lists.items() if text}}
    typed |= {"seeds": list(dict.fromkeys(whole_numbers("--seeds", seeds)))} if seeds else {}
    typed |= {SWAP: True} if swap_state else {}
    read = _suite(suite, typed)
    runs = planned(cells(read), read)
    runs = share(runs, shard) if shard else runs
    showing = Showing(json=json, quiet=quiet)
    if dry_run:
        from ttabench.cli.sweep_planned import dry_run as show_planned

        show_planned(runs, out, showing, threads=threads)
        return
    from ttabench.cli import sweeping
    from ttabench.sweep.driver import Manner
    from ttabench.sweep.engines import Resources
    from ttabench.sweep.engines import engine as engine_of

    own = {"address": address, "cluster": cluster}
    more = {**assignments(engine_set or (), "--engine-set"), **{name: text for name, text in own.items() if text}}
    resources = Resources(jobs=jobs, threads=threads, gpus=gpus_per_run, options=more)
    manner = Manner(out=out, engine=engine_of(engine), resources=resources, force=force)
    if not sweeping.run(runs, manner, showing):
        raise typer.Exit(1)


def _suite(file: Path | None, said: Mapping[str, Json]) -> Read:
    """The suite of a file, with what was typed beside it.

    Raises:
        UserError: the file is no suite; no runs are named.
    """
    from ttabench.sweep.file import Read, read

    if file is None:
        if missing := [name for name in ("methods", "tasks") if name not in said]:
            hint = "Give SUITE.yaml, or --methods none,icl --tasks streamingqa."
            raise UserError(f"No {' and no '.join(missing)} are named.", hint)
        return Read(dict(said))
    found = read(file)
    if not isinstance(found.data, dict):
        return found
    lines = {place: line for place, line in found.lines.items() if place[0] not in said}
    return replace(found, data={**found.data, **said}, lines=lines)
