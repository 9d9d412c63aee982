"""`ttabench report`: which runs, and the page that is written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.compare import SAID, AllPairs, Methods, Metric, Models, Runs, Submissions, Tasks
from ttabench.cli.options import DEFAULT_OUT, Quiet
from ttabench.core.declared import HOW

SUFFIXES = (".html", ".htm")
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
    from ttabench.cli.compare_runs import Asked, comparison_of
    from ttabench.core import amounts
    from ttabench.report.page.libraries import refuse_missing
    from ttabench.report.pictures import check_path
    from ttabench.report.selecting import Wanted
    from ttabench.terminal import render

    wanted = Wanted.typed(task, method, model)
    asked = Asked(
        names=runs or (), submissions=submissions or (), out=out, metric=metric, wanted=wanted, all_pairs=all_pairs
    )
    check_path(save, "--save", SUFFIXES, "page")
    refuse_missing()
    comparison, remarks = comparison_of(asked)
    for line in remarks:
        render.remark(line)
    from ttabench.report.page.build import write_page

    write_page(comparison, save, samples=samples, remarks=remarks)
    if quiet:
        render.print_line(str(save))
        return
    size = amounts.size(save.stat().st_size)
    counted = sum(len(entry.runs) for entry in comparison.entries)
    counted_runs = f"{_counted(counted, 'run')} in {_counted(len(comparison.blocks), 'block')}"
    render.print_line(f"{save}: {counted_runs}, {size}. Open it in a browser.")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
