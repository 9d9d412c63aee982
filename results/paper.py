"""Tables of the four papers, beside the stored runs.

python results/paper.py list                              every table, and where its runs can be made
python results/paper.py mac/table1 --runs results         the paper's figures, ours, and a verdict on each claim
python results/paper.py claims --runs results             every claim of the four papers
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ttabench.cli import options as o
from ttabench.cli.errors import run_command
from ttabench.core.errors import UnknownName, UserError

if TYPE_CHECKING:
    from papers.declared import Scale
    from papers.judging import Stored

    from ttabench.terminal.render import Format

LIST, CLAIMS = "list", "claims"
app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def paper(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="PAPER/TABLE (mac/table1); list: all tables; claims: every claim."
        ),
    ] = LIST,
    scale: Annotated[
        str,
        o.option(
            o.WHICH,
            "nano, smollm2-135m, or full: the paper's models. (default: nano; of claims all)",
        ),
    ] = "",
    runs: Annotated[
        list[Path] | None,
        o.option(o.WHICH, "A further folder of runs, or of such folders; repeat for more."),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Tables of the four papers: which runs stand for them here, our figures beside theirs, and each claim's verdict.

    A claim is reproduced where the 95 % interval of our paired difference excludes zero and the state is better than
    another text's. `paper.py mac/table1 --runs results` looks among the runs of the repository, too.
    """
    from papers.declared import SCALES, list_table

    from ttabench.terminal import render

    output_form: Format = "json" if json else form
    if scale and scale not in SCALES:
        raise UnknownName("scale", scale, list(SCALES))
    scales, folders = [one for one in SCALES if scale in ("", one)], [out, *(runs or ())]
    if what == LIST:
        render.print_tables([list_table()], output_form)
    elif what == CLAIMS:
        from papers.claims import all_claims, claims_table

        if not (stored_runs := _stored(folders)).runs:
            raise UserError(f"There are no runs in {out}.", "Name folders of runs with --runs.")
        render.print_tables([claims_table(CLAIMS, all_claims(stored_runs, scales))], output_form)
    else:
        _table(what, scales[0], folders, output_form, quiet=quiet)


def _stored(folders: Sequence[Path]) -> Stored:
    """The runs of these folders; all but the first were named."""
    from papers.judging import stored

    from ttabench.terminal import render

    for folder in folders[1:]:
        if not (inside := stored([folder])).runs:
            fault = inside.damaged[0] if inside.damaged else f"There are no runs in {folder}."
            raise UserError(fault, "Name a folder of runs, or of such folders.")
    stored_runs = stored(folders)
    for line in stored_runs.damaged:
        render.print_note(f"Left out: {line}")
    return stored_runs


def _table(what: str, scale: Scale, folders: Sequence[Path], form: Format, *, quiet: bool) -> None:
    from papers import declared
    from papers.claims import RULE, figures_table, settings_table
    from papers.judging import judged

    from ttabench.terminal import render

    of, which, table = declared.table(what)
    stored_runs, suite = _stored(folders), declared.suites(of, which).get(scale)
    if not quiet:
        command = f"ttabench sweep {quote(str(suite))} --out {quote(str(folders[0]))}"
        made = table.note or f"there is no suite at scale {scale}"
        render.print_note(f"Runs of {what}: {command if suite else made}.")
    rows = judged(of, which, stored_runs, [scale])
    told = [row for row in rows if row.scale] if form == "table" else rows
    claims = [settings_table("claims", told).without("table")] if told else []
    render.print_tables([figures_table(what, stored_runs, scale), *claims], form)
    if len(told) < len(rows):
        render.print_sentences(
            [f"{len(rows) - len(told)} of {len(rows)} claims have no runs here."]
        )
    if told and form == "table" and not quiet:
        render.print_sentences([RULE.replace("**", "")])


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    return run_command(lambda: app(args=arguments, prog_name="paper.py", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
