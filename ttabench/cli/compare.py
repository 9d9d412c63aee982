"""What can be typed after `ttabench compare`; what it does stands in `compare_runs`. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.completion import complete_method, complete_model, complete_run, complete_task
from ttabench.cli.options import DEFAULT_OUT, AsJson, Out
from ttabench.core.declared import HOW

WHICH, SAID = "Which runs", "What is said of them"
Metric = Annotated[
    str,
    typer.Option(help="Metric compared. (default: the task's main one)", show_default=False, rich_help_panel=SAID),
]
Form = Annotated[
    str,
    typer.Option("--format", "-f", help="table, markdown, csv, json or parquet (redirected).", rich_help_panel=HOW),
]
Save = Annotated[
    Path | None,
    typer.Option(help="Write it to a file instead: .md, .csv, .json or .parquet.", show_default=False,
                 rich_help_panel=HOW),
]  # fmt: skip
Plot = Annotated[
    Path | None,
    typer.Option(help="Also draw quality by step and by bytes of state, a panel a block: a .png or .svg file.",
                 show_default=False, rich_help_panel=HOW),
]  # fmt: skip
Runs = Annotated[
    list[str] | None,
    typer.Argument(help="Runs: folders, globs, (beginnings of) ids; and names of methods. None for all in --out.",
                   autocompletion=complete_run),
]  # fmt: skip
Submissions = Annotated[
    list[Path] | None,
    typer.Option("--with", help="Runs of others: a file that `ttabench export` wrote; repeat for more.",
                 show_default=False, rich_help_panel=WHICH),
]  # fmt: skip
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", help="Only these tasks: a list with commas, or repeat.", rich_help_panel=WHICH,
                 autocompletion=complete_task),
]  # fmt: skip
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", "-m", help="Only these methods; kvpress stands for all of its presses.",
                 rich_help_panel=WHICH, autocompletion=complete_method),
]  # fmt: skip
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Only these base models.", rich_help_panel=WHICH, autocompletion=complete_model),
]
AllPairs = Annotated[
    bool,
    typer.Option("--all-pairs", help="Test every pair. (default above four lines: pairs with the ceiling or the best)",
                 rich_help_panel=SAID),
]  # fmt: skip
Flips = Annotated[
    bool,
    typer.Option(
        "--flips",
        help="Show the queries that one run of a pair answers better, with both answers.",
        rich_help_panel=SAID,
    ),
]
Diff = Annotated[
    bool,
    typer.Option("--diff", help="Show the settings, options, data and versions that differ.", rich_help_panel=SAID),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit code 1 if a pair of a block is not paired, a run is set aside or damaged, a"
                 " seed or the metric is missing, or data or bases differ.", rich_help_panel=SAID),
]  # fmt: skip


All = Annotated[
    bool, typer.Option("--all", help="Show every block, also when there are more than 12.", rich_help_panel=SAID)
]
Summary = Annotated[
    bool,
    typer.Option(
        "--summary",
        help="Show only the first lines and the first table; the default with more than 12 blocks.",
        rich_help_panel=SAID,
    ),
]


def compare(
    runs: Runs = None,
    task: Tasks = None,
    method: Methods = None,
    model: Models = None,
    submissions: Submissions = None,
    metric: Metric = "",
    all_pairs: AllPairs = False,
    flips: Flips = False,
    diff: Diff = False,
    strict: Strict = False,
    summary: Summary = False,
    every: All = False,
    form: Form = "table",
    save: Save = None,
    plot: Plot = None,
    out: Out = DEFAULT_OUT,
    json: AsJson = False,
) -> None:
    """Compare runs: who leads, quality beside cost, and every difference, paired, with its interval.

    One block a task, source and base model. `compare mac icl --task streamingqa` compares those methods.
    """
    from ttabench.cli import compare_runs as command
    from ttabench.report.selecting import Wanted

    wanted = Wanted.typed(task, method, model)
    asked = command.Asked(
        names=runs or (), submissions=submissions or (), out=out, metric=metric, wanted=wanted, all_pairs=all_pairs,
        diff=diff, flips=flips, strict=strict, summary=summary, every=every,
    )  # fmt: skip
    if not command.compare(asked, command.Delivery(form="json" if json else form, save=save, picture=plot)):
        raise typer.Exit(1)
