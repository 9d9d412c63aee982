"""What can be typed after `ttabench paper`; what it does stands in `paper_tables`. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.completion import complete_paper
from ttabench.cli.options import DEFAULT_OUT, AsJson, Quiet
from ttabench.cli.sweep import Jobs
from ttabench.core.declared import HOW

WHICH = "Which runs"
What = Annotated[
    str,
    typer.Argument(metavar="WHAT", help="PAPER/TABLE (mac/table1); list: all tables; claims: every claim.",
                   autocompletion=complete_paper),
]  # fmt: skip
ScaleName = Annotated[
    str,
    typer.Option(help="nano, smollm2-135m, or full: the paper's models. (default: nano; of claims all)",
                 show_default=False, rich_help_panel=WHICH),
]  # fmt: skip
Folders = Annotated[
    list[Path] | None,
    typer.Option("--runs", help="A further folder of runs, or of such folders; repeat for more.",
                 show_default=False, rich_help_panel=WHICH),
]  # fmt: skip
Make = Annotated[bool, typer.Option("--run", help="Make the runs that are missing.", rich_help_panel=WHICH)]
Save = Annotated[
    Path | None,
    typer.Option("--save", "-o", help="With claims: write the page to this .md file.", show_default=False,
                 rich_help_panel=HOW),
]  # fmt: skip
Folder = Annotated[Path, typer.Option("--out", envvar="TTABENCH_OUT", help="Folder of the runs.", rich_help_panel=HOW)]
Form = Annotated[
    str, typer.Option("--format", "-f", help="table, markdown, csv or json.", rich_help_panel=HOW),
]  # fmt: skip


def paper(
    what: What = "list",
    scale: ScaleName = "",
    runs: Folders = None,
    make: Make = False,
    jobs: Jobs = 1,
    out: Folder = DEFAULT_OUT,
    save: Save = None,
    form: Form = "table",
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Tables of the four papers: which runs stand for them here, our figures beside theirs, and each claim's verdict.

    A claim is reproduced or contradicted where the 95 % interval of our paired difference excludes zero; else it is
    undecided. `ttabench paper mac/table1 --runs results` looks among the runs of the repository, too.
    """
    from ttabench.cli import paper_tables

    asked = paper_tables.Asked(what=what, scale=scale, folders=tuple(runs or ()), out=out, make=make, jobs=jobs)
    if not paper_tables.paper(asked, save=save, form="json" if json else form, quiet=quiet):
        raise typer.Exit(1)
