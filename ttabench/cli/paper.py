"""`ttabench paper`: which runs of a table there are, which are made, and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ttabench.cli import options as o
from ttabench.core.declared import HOW
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import write_atomically

if TYPE_CHECKING:
    from ttabench.papers.declared import Scale
    from ttabench.papers.matching import Stored
    from ttabench.sweep.engines import Job
    from ttabench.terminal.render import Format

LIST, CLAIMS = "list", "claims"


def _complete_paper(incomplete: str) -> list[str]:
    from ttabench.papers.declared import names

    return [name for name in (LIST, CLAIMS, *names()) if name.startswith(incomplete)]


def paper(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="PAPER/TABLE (mac/table1); list: all tables; claims: every claim.",
                       autocompletion=_complete_paper),
    ] = LIST,
    scale: Annotated[
        str, o.option(o.WHICH, "nano, smollm2-135m, or full: the paper's models. (default: nano; of claims all)")
    ] = "",
    runs: Annotated[
        list[Path] | None,
        o.option(o.WHICH, "A further folder of runs, or of such folders; repeat for more.", "--runs"),
    ] = None,
    make: Annotated[bool, o.option(o.WHICH, "Make the runs that are missing.", "--run")] = False,
    jobs: o.Jobs = 1,
    out: o.OutOnly = o.DEFAULT_OUT,
    save: Annotated[
        Path | None, o.option(HOW, "With claims: write the page to this .md file.", "--save", "-o")
    ] = None,
    form: o.Form = "table",
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:  # fmt: skip
    """Tables of the four papers: which runs stand for them here, our figures beside theirs, and each claim's verdict.

    A claim is reproduced where the 95 % interval of our paired difference excludes zero and the state is better than
    another text's. `ttabench paper mac/table1 --runs results` looks among the runs of the repository, too.
    """
    from ttabench.papers.declared import SCALES, list_table
    from ttabench.terminal import render

    output_form = render.known_format("json" if json else form)
    if scale and scale not in SCALES:
        raise UnknownName("scale", scale, list(SCALES))
    scales, folders = [one for one in SCALES if scale in ("", one)], [out, *(runs or ())]
    if make and what in (LIST, CLAIMS):
        raise UserError(f"--run needs one table, and {what!r} is not the name of one.", "Name PAPER/TABLE.")
    if save is not None and what != CLAIMS:
        hint = "Use `ttabench paper claims --save claims.md`."
        raise UserError("--save can only write the page of all claims.", hint)
    if what == LIST:
        render.show([list_table()], output_form)
    elif what == CLAIMS:
        _claims(folders, scales, save, output_form)
    else:
        again = f"ttabench paper {what}{f' --scale {scale}' if scale else ''} --run --out {quote(str(out))}"
        _table(what, scales[0], folders, output_form, quiet=quiet, jobs=jobs if make else 0, again=again)


def _stored(folders: Sequence[Path]) -> Stored:
    """The runs of these folders; all but the first were named."""
    from ttabench.papers.matching import stored
    from ttabench.terminal import render

    for folder in folders[1:]:
        if not ((inside := stored([folder])).runs or inside.profiles):
            fault = inside.damaged[0] if inside.damaged else f"There are no runs in {folder}."
            raise UserError(fault, "Name a folder of runs or profiles, or of such folders.")
    stored_runs = stored(folders)
    for line in stored_runs.damaged:
        render.remark(f"Left out: {line}")
    return stored_runs


def _claims(folders: Sequence[Path], scales: Sequence[Scale], save: Path | None, form: Format) -> None:
    from ttabench.papers.claims import all_claims, claims_page, claims_table
    from ttabench.report.pictures import check_path
    from ttabench.terminal import render

    if save is not None:
        check_path(save, "--save", (".md",), "page")
    stored_runs = _stored(folders)
    if not (stored_runs.runs or stored_runs.profiles):
        raise UserError(f"There are no runs in {folders[0]}.", "Name folders of runs with --runs.")
    if save is not None:
        write_atomically(save, claims_page(stored_runs))
        render.remark(f"Saved in {save}.")
        return
    render.show([claims_table(CLAIMS, all_claims(stored_runs, scales))], form)


def _table(
    what: str, scale: Scale, folders: Sequence[Path], form: Format, *, quiet: bool, jobs: int, again: str
) -> None:  # fmt: skip
    """Show a table; `jobs`: make the runs that are missing, so many at a time; `again`: the command that would."""
    from ttabench.papers import declared
    from ttabench.papers.claims import RULE, beside_table, reported_table, settings_table
    from ttabench.papers.judging import judged
    from ttabench.terminal import render

    of, which, table = declared.table(what)
    if table.needs is not None:
        if jobs:
            raise UserError(f"{what} cannot be run here: {declared.why(table)}.", "See `ttabench paper list`.")
        render.show([reported_table(what)], form)
        render.remark(f"None of its runs are made here: {declared.why(table)}.")
        return
    stored_runs, failed, suites = _stored(folders), 0, declared.suites(of, which)
    if scale in suites:
        missing = _missing(what, scale, suites[scale], stored_runs, make=bool(jobs))
        if jobs and missing:
            failed = _made(missing, folders[0], jobs, talking=form == "table" and not quiet)
            stored_runs = _stored(folders)
        elif missing and not quiet:
            render.remark(f"{len(missing)} are missing: {again}")
    elif jobs:
        raise UserError(
            f"{what} has no runs at scale {scale}.", f"There are: {', '.join(suites) or table.stored_only}."
        )
    elif not quiet:
        render.remark(f"No suite makes its runs at scale {scale}: they are shown where they are stored.")
    rows = judged(of, which, stored_runs, [scale])
    told = [row for row in rows if row.scale] if form == "table" else rows
    claims = [settings_table("claims", told).without("table")] if told else []
    render.show([beside_table(what, stored_runs, scale), *claims], form)
    if len(told) < len(rows):
        render.say([f"{len(rows) - len(told)} of {len(rows)} claims have no runs here."])
    if told and form == "table" and not quiet:
        render.say([RULE.replace("**", "")])
    if failed:
        raise typer.Exit(1)


def _missing(what: str, scale: Scale, file: Path, stored_runs: Stored, *, make: bool) -> list[Job]:
    """The runs of a suite that are stored nowhere; says how many there are."""
    from ttabench.sweep.file import read
    from ttabench.sweep.grid import cells
    from ttabench.sweep.planning import planned
    from ttabench.terminal import render

    if scale == "full" and not make:
        render.remark(f"Its runs at full scale take a GPU: ttabench sweep {quote(str(file))}")
        return []
    try:
        runs = planned(cells(read(file)))
    except UserError as error:
        if make:
            raise
        render.remark(f"Its runs cannot be made on this machine: {error}")
        return []
    there = {record.id for _, record in stored_runs.runs}
    missing = [run for run in runs if run.id not in there]
    render.remark(f"{what} at scale {scale}: {len(runs)} runs, {len(runs) - len(missing)} stored ({file}).")
    return missing


def _made(runs: Sequence[Job], out: Path, jobs: int, *, talking: bool) -> int:
    """Make these runs; how many of them failed, each with a line that says why."""
    from ttabench.cli.sweep_runs import made, remark
    from ttabench.sweep.driver import swept
    from ttabench.sweep.engines import Resources, engine

    reports = made(runs, swept(runs, out, engine("local"), Resources(jobs=jobs)), talking=talking)
    failed = [run for run in runs if reports[run.id].state == "failed"]
    remark(f"{run.label}: {reports[run.id].reason}" for run in failed)
    return len(failed)
