"""`ttabench report`: write an HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ttabench.cli import options as o
from ttabench.core.declared import EXECUTION_GROUP
from ttabench.terminal import render

PAGE_SUFFIXES = (".html", ".htm")


def report(
    runs: o.Runs = None,
    task: o.Tasks = None,
    method: o.Methods = None,
    model: o.Models = None,
    metric: o.Metric = "",
    all_pairs: o.AllPairs = False,
    samples: Annotated[
        int,
        o.option(
            o.OUTPUT_PANEL,
            "Maximum number of queries shown per comparison group.",
            "--samples",
            min=0,
        ),
    ] = 20,
    save: Annotated[
        Path, o.option(EXECUTION_GROUP, "File to write (.html).", "--save", "-o")
    ] = Path("report.html"),
    out: o.OutOnly = o.DEFAULT_OUT,
    quiet: o.Quiet = False,
) -> None:
    """Write an HTML report on runs: charts, tables, and samples on which methods disagree.

    The report is a single file that works offline.
    Example: `ttabench report results/nine -o report.html`
    """
    from ttabench.cli.compare import compared
    from ttabench.core import amounts
    from ttabench.core.files import write_atomically
    from ttabench.report.page import REQUIRED_PACKAGES
    from ttabench.report.pictures import check_output_path, check_packages, is_own_file

    check_output_path(save, PAGE_SUFFIXES, "page")
    check_packages("`ttabench report`", REQUIRED_PACKAGES)
    filters = {"task": task, "method": method, "model": model}
    comparison, remarks = compared(runs or (), out, filters, metric, all_pairs=all_pairs)
    from ttabench.report.page import page

    write_atomically(save, page(comparison, samples=samples, remarks=remarks), is_own_file)
    if quiet:
        render.print_line(str(save))
        return
    run_count = sum(len(method_row.runs) for method_row in comparison.method_rows)
    counts = f"runs: {run_count:,}, comparison groups: {len(comparison.groups):,}"
    render.print_line(
        f"{save} ({counts}, {amounts.format_bytes(save.stat().st_size)}). Open it in a browser."
    )
