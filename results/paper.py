"""Command line for the tables of the four papers and their claims.

python results/paper.py list                              every table, and the suites for its runs
python results/paper.py mac/table1 --runs results         the paper's figures, ours, and a verdict
on each claim python results/paper.py claims --runs results             every claim of the four
papers
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
    from papers.judging import StoredRuns

    from ttabench.terminal.render import Format

LIST, CLAIMS = "list", "claims"
app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def paper(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="PAPER/TABLE (mac/table1), list (all tables) or claims (all)."
        ),
    ] = LIST,
    scale: Annotated[
        str,
        o.option(
            o.QUERY_GROUP,
            "nano, smollm2-135m, or full (the paper's models). (default: nano; all for claims)",
        ),
    ] = "",
    runs: Annotated[
        list[Path] | None,
        o.option(o.QUERY_GROUP, "Another folder of runs, or of folders of runs. Repeatable."),
    ] = None,
    out: o.Out = o.DEFAULT_OUT,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Show the tables of four papers: their figures, ours, and a verdict on each claim.

    A claim is reproduced if the 95 % interval of our paired difference excludes zero and the own
    state is better than a swapped one. Use `paper.py mac/table1 --runs results` to include the runs
    of the repository.
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
            raise UserError(f"{out} has no runs.", "Add a folder of runs with --runs.")
        render.print_tables([claims_table(CLAIMS, all_claims(stored_runs, scales))], output_form)
    else:
        _table(what, scales[0], folders, output_form, quiet=quiet)


def _stored(folders: Sequence[Path]) -> StoredRuns:
    """Load the runs of these folders. Raises a `UserError` if a folder of --runs is empty."""
    from papers.judging import load_stored_runs

    from ttabench.terminal import render

    for folder in folders[1:]:
        if not (inside := load_stored_runs([folder])).runs:
            fault = inside.damaged[0] if inside.damaged else f"{folder} has no runs."
            raise UserError(fault, "Set --runs to a folder of runs, or of folders of runs.")
    stored_runs = load_stored_runs(folders)
    for line in stored_runs.damaged:
        render.print_note(f"Skipped: {line}")
    return stored_runs


def _table(what: str, scale: Scale, folders: Sequence[Path], form: Format, *, quiet: bool) -> None:
    from papers import declared
    from papers.claims import RULE, figures_table, settings_table
    from papers.judging import evaluate_claims

    from ttabench.terminal import render

    of, which, table = declared.table(what)
    stored_runs, suite = _stored(folders), declared.suites(of, which).get(scale)
    if not quiet:
        command = f"ttabench sweep {quote(str(suite))} --out {quote(str(folders[0]))}"
        missing = table.note or f"no suite at scale {scale}"
        render.print_note(f"Runs of {what}: {command if suite else missing}.")
    rows = evaluate_claims(of, which, stored_runs, [scale])
    shown = [row for row in rows if row.scale] if form == "table" else rows
    claims = [settings_table("claims", shown).without("table")] if shown else []
    render.print_tables([figures_table(what, stored_runs, scale), *claims], form)
    if len(shown) < len(rows):
        render.print_sentences([f"{len(rows) - len(shown)} of {len(rows)} claims have no runs."])
    if shown and form == "table" and not quiet:
        render.print_sentences([RULE.replace("**", "")])


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    return run_command(lambda: app(args=arguments, prog_name="paper.py", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(run())
