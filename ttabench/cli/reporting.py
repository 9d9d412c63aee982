"""What can be typed after `ttabench report`; what it does stands in `cli.report`. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.comparing import SAID, AllPairs, Methods, Metric, Models, Runs, Submissions, Tasks
from ttabench.cli.options import DEFAULT_OUT, Quiet
from ttabench.core.declared import HOW

Save = Annotated[
    Path, typer.Option("--save", "-o", help="File to write: it ends in .html.", rich_help_panel=HOW),
]  # fmt: skip
Folder = Annotated[Path, typer.Option("--out", envvar="TTABENCH_OUT", help="Folder of the runs.", rich_help_panel=HOW)]
Queries = Annotated[
    int, typer.Option("--samples", min=0, help="Queries of a block that are shown, at most.", rich_help_panel=SAID)
]


def report(
    runs: Runs = None,
    task: Tasks = None,
    method: Methods = None,
    model: Models = None,
    submissions: Submissions = None,
    metric: Metric = "",
    all_pairs: AllPairs = False,
    samples: Queries = 20,
    save: Save = Path("report.html"),
    out: Folder = DEFAULT_OUT,
    quiet: Quiet = False,
) -> None:
    """Write one page of runs: verdict, charts, tables that sort and filter, samples on which methods disagree.

    A single file for a browser, which fetches nothing. `ttabench report results/nine -o report.html`.
    """
    from ttabench.cli import report as command
    from ttabench.report.selecting import Wanted

    wanted = Wanted.typed(task, method, model)
    asked = command.Asked(
        names=runs or (), submissions=submissions or (), out=out, metric=metric, wanted=wanted, all_pairs=all_pairs
    )
    command.report(asked, save, samples=samples, quiet=quiet)
