"""`ttabench show`, `ttabench list` and `ttabench rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from ttabench.cli import options as o


def show(
    run_: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run to show: its folder, SUITE/ID, the beginning of its id, or its method.",
        ),
    ],
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Show all settings, results and costs, and full texts."),
    ] = False,
    page: Annotated[
        int | None, typer.Option(min=1, help="Show only this page of samples, from 1.")
    ] = None,
    per_page: Annotated[int, typer.Option(min=1, help="Number of samples per page.")] = 4,
    wrong: Annotated[
        bool, typer.Option("--wrong", "-w", help="Show only samples below the full score.")
    ] = False,
    grep: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Show only samples that contain TEXT, ignoring case."),
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
) -> None:
    """Show one stored run: command, settings, results, costs, and samples with answers."""
    from ttabench.report import show as show_module

    sample_options = show_module.SampleFilter(page=page, per_page=per_page, wrong=wrong, grep=grep)
    show_module.show(run_, out, sample_options, "json" if json else form, everything=everything)


def list_(
    what: Annotated[
        str, typer.Argument(help="What to list: methods, tasks, models, adapters or runs.")
    ] = "methods",
    name: Annotated[
        str,
        typer.Argument(
            help="Method to list the settings of (only with `methods`).", show_default=False
        ),
    ] = "",
    method: Annotated[
        str, typer.Option("--method", "-m", help="List only runs of this method.")
    ] = "",
    task: Annotated[str, typer.Option("--task", "-t", help="List only runs of this task.")] = "",
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="List only runs that cannot be reused today: a repetition would have other "
            "inputs or settings, or is impossible. The column `changed` has the reason.",
        ),
    ] = False,
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """List methods, tasks, models, adapters or runs."""
    from ttabench.report import listing

    listing.show(what, name, out, method=method, task=task, stale=stale, json=json)


def remove(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Runs to remove: folders, or beginnings of their ids."),
    ],
    out: o.Out = o.DEFAULT_OUT,
) -> None:
    """Move stored runs to the folder .trash next to them.

    Nothing is deleted: to restore a run, move its folder back. Delete .trash to free the space.
    """
    from ttabench.records.folder import move_to_trash
    from ttabench.report.selection import find_run
    from ttabench.terminal import render

    for folder in dict.fromkeys([find_run(name, out) for name in runs]):
        render.print_line(f"{folder} moved to {move_to_trash(folder)}")
