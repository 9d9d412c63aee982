"""What can be typed after `ttabench export`; what it does stands in `cli.export`. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.comparing import Methods, Models, Runs, Tasks
from ttabench.cli.options import DEFAULT_OUT, AsJson, Quiet
from ttabench.core.declared import HOW

Save = Annotated[
    Path, typer.Option("--save", "-o", help="File to write: it ends in .parquet.", rich_help_panel=HOW),
]  # fmt: skip
Folder = Annotated[Path, typer.Option("--out", envvar="TTABENCH_OUT", help="Folder of the runs.", rich_help_panel=HOW)]


def export(
    runs: Runs = None,
    task: Tasks = None,
    method: Methods = None,
    model: Models = None,
    save: Save = Path("submission.parquet"),
    out: Folder = DEFAULT_OUT,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write runs as one file for others: configuration, versions, figures, costs, scores by query; no text, no path.

    They read it with `ttabench compare --with submission.parquet`, or `report`: your runs then stand beside theirs.
    """
    from ttabench.cli import export as command
    from ttabench.report.selecting import Wanted

    wanted = Wanted.typed(task, method, model)
    command.export(command.Asked(names=runs or (), out=out, wanted=wanted), save, json=json, quiet=quiet)
