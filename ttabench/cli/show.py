"""`ttabench show` and `ttabench list` as they are typed. Nothing heavy is imported."""

from __future__ import annotations

from typing import Annotated

import typer

from ttabench.cli import options as o
from ttabench.cli.completion import complete_list, complete_method, complete_model, complete_run, complete_task

OneRun = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run: its folder, SUITE/ID, or (the beginning of) an id in --out.",
                   autocompletion=complete_run),
]  # fmt: skip
Everything = Annotated[
    bool, typer.Option("--all", "-a", help="Show all settings, figures and texts, not only the most important ones.")
]
Page = Annotated[int | None, typer.Option(min=1, help="Show this page of the samples.", show_default=False)]
PerPage = Annotated[int, typer.Option(min=1, help="Samples of a page.")]
Wrong = Annotated[bool, typer.Option("--wrong", "-w", help="Only samples without the full score.")]
Differs = Annotated[
    str,
    typer.Option(metavar="RUN", help="Only samples that this other run answered otherwise, both side by side.",
                 show_default=False, autocompletion=complete_run),
]  # fmt: skip
Grep = Annotated[
    str, typer.Option(metavar="TEXT", help="Only samples with this text, in upper or lower case.", show_default=False)
]
What = Annotated[
    str,
    typer.Argument(help="methods, tasks, models, adapters or runs.", show_default=False, autocompletion=complete_list),
]
Name = Annotated[
    str,
    typer.Argument(help="With `methods`: one method, to see its settings.", show_default=False,
                   autocompletion=complete_method),
]  # fmt: skip
OfMethod = Annotated[
    str,
    typer.Option("--method", "-m", help="With `runs`: only those of this method.", show_default=False,
                 autocompletion=complete_method),
]  # fmt: skip
OfTask = Annotated[
    str,
    typer.Option("--task", "-t", help="With `runs`: only those of this task.", show_default=False,
                 autocompletion=complete_task),
]  # fmt: skip
ForModel = Annotated[
    str,
    typer.Option("--model", help="With `methods NAME`: the model whose preset is shown.",
                 autocompletion=complete_model),
]  # fmt: skip
ShownPreset = Annotated[
    str, typer.Option("--preset", help="With `methods NAME`: the preset that is shown.", show_default=False)
]


def show(
    run_: OneRun,
    everything: Everything = False,
    page: Page = None,
    per_page: PerPage = 4,
    wrong: Wrong = False,
    differs: Differs = "",
    grep: Grep = "",
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
) -> None:
    """Show one stored run: its command, settings, figures and costs, then what it was asked and answered."""
    from ttabench.report import show as showing

    chosen = showing.Samples(page=page, per_page=per_page, wrong=wrong, differs=differs, grep=grep)
    showing.show(run_, out, chosen, "json" if json else form, everything=everything)


def list_(
    what: What = "",
    name: Name = "",
    method: OfMethod = "",
    task: OfTask = "",
    model: ForModel = "nano",
    preset: ShownPreset = "",
    out: o.Out = o.DEFAULT_OUT,
    json: o.AsJson = False,
) -> None:
    """List methods, tasks, models, adapters or runs."""
    from ttabench.report import listing

    wanted = listing.Wanted(out=out, method=method, task=task, model=model, preset=preset)
    listing.show(what, name, wanted, json)
