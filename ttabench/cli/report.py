"""`ttabench report`: which runs, and the page that is written of them."""

from __future__ import annotations

from pathlib import Path

from ttabench.cli.compare import Asked as Asked
from ttabench.cli.compare import left_out, without_collector
from ttabench.core import amounts
from ttabench.report.compare import compared
from ttabench.report.page.libraries import refuse_missing
from ttabench.report.pictures import check_path
from ttabench.report.selecting import selected
from ttabench.terminal import render

SUFFIXES = (".html", ".htm")


def report(asked: Asked, save: Path, *, samples: int, quiet: bool) -> None:
    """Write the page of a comparison, and say where it is.

    Raises:
        UserError: runs that `compare` would refuse, a file that cannot be written, a package that is missing.
    """
    check_path(save, "--save", SUFFIXES, "page")
    refuse_missing()
    with without_collector():
        chosen = selected(asked.names, asked.out, asked.wanted, asked.submissions)
        found = compared(chosen.runs, asked.metric, all_pairs=asked.all_pairs, damaged=chosen.damaged)
    told = left_out(chosen, found, asked)
    for line in told:
        render.remark(line)
    from ttabench.report.page.build import write_page

    write_page(found, save, samples=samples, remarks=told)
    if quiet:
        render.print_line(str(save))
    else:
        runs, size = sum(len(entry.runs) for entry in found.entries), amounts.size(save.stat().st_size)
        what = f"{_counted(runs, 'run')} in {_counted(len(found.blocks), 'block')}"
        render.print_line(f"{save}: {what}, {size}. Open it in a browser.")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
