"""`ttabench report`: which runs, and the page that is written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ttabench.cli import options as o
from ttabench.core.declared import HOW
from ttabench.terminal import render

SUFFIXES = (".html", ".htm")


def report(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    metric: o.Metric = "",
    all_pairs: o.AllPairs = False,
    samples: Annotated[int, o.option(o.SAID, "Queries of a block that are shown, at most.", "--samples", min=0)] = 20,
    save: Annotated[Path, o.option(HOW, "File to write: it ends in .html.", "--save", "-o")] = Path("report.html"),
    out: o.OutOnly = o.DEFAULT_OUT,
    quiet: o.Quiet = False,
) -> None:
    """Write one page of runs: verdict, charts, tables that sort and filter, samples on which methods disagree.

    A single file for a browser, which fetches nothing. `ttabench report results/nine -o report.html`.
    """
    from ttabench.cli.compare import compared
    from ttabench.core import amounts
    from ttabench.core.files import write_atomically
    from ttabench.report.page import NEEDED
    from ttabench.report.pictures import check_path, is_marked, refuse_missing

    check_path(save, SUFFIXES, "page")
    refuse_missing("`ttabench report`", NEEDED)
    wanted = {"task": task, "method": method, "model": model}
    comparison, remarks = compared(runs or (), out, wanted, metric, all_pairs=all_pairs)
    from ttabench.report.page import page

    write_atomically(save, page(comparison, samples=samples, remarks=remarks), is_marked)
    if quiet:
        render.print_line(str(save))
        return
    counted, blocks = sum(len(entry.runs) for entry in comparison.entries), len(comparison.blocks)
    words = f"{counted:,} run{'s' * (counted != 1)} in {blocks:,} block{'s' * (blocks != 1)}"
    render.print_line(f"{save}: {words}, {amounts.size(save.stat().st_size)}. Open it in a browser.")
