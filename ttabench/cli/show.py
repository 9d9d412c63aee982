"""`ttabench show` and `ttabench list` as they are typed."""

from __future__ import annotations

from typing import Annotated

import typer

from ttabench.cli import options as o


def show(
    run_: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run: its folder, SUITE/ID, how its id begins, or its method."
        ),
    ],
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            "-a",
            help="Show all settings, figures and texts, not only the most important ones.",
        ),
    ] = False,
    page: Annotated[int | None, typer.Option(min=1, help="Show this page of the samples.")] = None,
    per_page: Annotated[int, typer.Option(min=1, help="Samples of a page.")] = 4,
    wrong: Annotated[
        bool, typer.Option("--wrong", "-w", help="Only samples without the full score.")
    ] = False,
    grep: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only samples with this text, in upper or lower case."),
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
) -> None:
    """Show one stored run: its command, settings, figures and costs, then what it was asked and answered."""
    from ttabench.report import show as show_module

    sample_options = show_module.SampleFilter(page=page, per_page=per_page, wrong=wrong, grep=grep)
    show_module.show(run_, out, sample_options, "json" if json else form, everything=everything)


def list_(
    what: Annotated[
        str, typer.Argument(help="methods, tasks, models, adapters or runs.")
    ] = "methods",
    name: Annotated[
        str,
        typer.Argument(help="With `methods`: one method, to see its settings.", show_default=False),
    ] = "",
    method: Annotated[
        str, typer.Option("--method", "-m", help="With `runs`: only those of this method.")
    ] = "",
    task: Annotated[
        str, typer.Option("--task", "-t", help="With `runs`: only those of this task.")
    ] = "",
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """List methods, tasks, models, adapters or runs."""
    from ttabench.report import listing

    listing.show(what, name, out, method=method, task=task, json=json)
