"""`ttabench sweep`: what was typed, or stands in a file, as a suite; then its runs, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ttabench.core.errors import UserError

if TYPE_CHECKING:
    from ttabench.core.types import Json
    from ttabench.sweep.engines import Resources
    from ttabench.sweep.file import Read

NAMED = {"methods": "method", "tasks": "task", "models": "model"}
ENGINE_OPTIONS = ("address", "cluster")
"""Options of engines that have a word of their own."""


def sweep(context: typer.Context, typed: dict[str, Any]) -> None:
    """Run a grid of methods, tasks, models, seeds and settings: what is stored is not run again.

    The runs stand in SUITE.yaml (--schema prints what it may say), or are typed; options beside a file take the place
    of what it says of all runs. A run that fails is a row with its reason, and the others go on; the command then
    leaves with 1.
    """
    from ttabench.cli.commands import Showing
    from ttabench.core import render

    if typed["schema"]:
        from ttabench.sweep.options import RENAMED
        from ttabench.sweep.suite import schema

        options = {str(each.name): str(getattr(each, "help", "")) for each in context.command.params}
        helps = {RENAMED.get(name, name): told for name, told in options.items()}
        render.print_json(schema(helps))
        return
    from ttabench.sweep.grid import cells
    from ttabench.sweep.planning import planned, share

    read = _suite(typed["suite"], _said(context, typed))
    runs = planned(cells(read), read)
    if typed["shard"]:
        runs = share(runs, typed["shard"])
    showing = Showing(json=typed["json"], quiet=typed["quiet"])
    if typed["dry_run"]:
        from ttabench.cli.sweep_planned import dry_run

        dry_run(runs, typed["out"], showing, threads=typed["threads"])
        return
    from ttabench.cli import sweeping
    from ttabench.sweep.driver import Manner
    from ttabench.sweep.engines import engine

    manner = Manner(out=typed["out"], engine=engine(typed["engine"]), resources=_resources(typed), force=typed["force"])
    if not sweeping.run(runs, manner, showing):
        raise typer.Exit(1)


def _said(context: typer.Context, typed: Mapping[str, Any]) -> dict[str, Json]:
    """What was typed of the runs, as a suite says it."""
    from ttabench.cli.commands import number_list
    from ttabench.core.typed import assignments
    from ttabench.profiling.typed import method_names
    from ttabench.sweep.options import ASSIGNED, AUTO, OPTIONS, RENAMED

    found: dict[str, Json] = {}
    for name, value in typed.items():
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        name = RENAMED.get(name, name)
        if name in NAMED:
            found[name] = method_names(value, ())
        elif name == "seeds":
            found[name] = list(dict.fromkeys(number_list("--seeds", value)))
        elif name in ASSIGNED:
            found[name] = dict(assignments(value, f"--{name.replace('_', '-')}"))
        elif name == "batch_size":
            found[name] = value or AUTO
        elif name in OPTIONS:
            found[name] = str(value) if isinstance(value, Path) else value
    return found


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


def _resources(typed: Mapping[str, Any]) -> Resources:
    from ttabench.core.typed import assignments
    from ttabench.sweep.engines import Resources

    options = assignments(typed["engine_set"] or (), "--engine-set")
    options |= {name: typed[name] for name in ENGINE_OPTIONS if typed[name]}
    return Resources(jobs=typed["jobs"], threads=typed["threads"], gpus=typed["gpus_per_run"], options=options)
