"""`ttabench paper`: which runs of a table there are, which are made, and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import write_atomically
from ttabench.papers import declared
from ttabench.papers.declared import SCALES, Scale
from ttabench.papers.listing import list_table
from ttabench.terminal import render

if TYPE_CHECKING:
    from ttabench.papers.matching import Stored
    from ttabench.sweep.planning import Run

LIST, CLAIMS = "list", "claims"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options as typed."""

    what: str
    scale: str = ""
    folders: tuple[Path, ...] = ()
    out: Path
    make: bool = False
    jobs: int = 1

    @property
    def scales(self) -> tuple[Scale, ...]:
        """Those that are asked for.

        Raises:
            UnknownName: there is no such scale.
        """
        if self.scale and self.scale not in SCALES:
            raise UnknownName("scale", self.scale, list(SCALES))
        return tuple(scale for scale in SCALES if self.scale in ("", scale))


def paper(asked: Asked, *, save: Path | None, form: str, quiet: bool) -> bool:
    """Show what is asked for; False where a run that had to be made failed.

    Raises:
        UserError: no such table or scale, folders without runs, options that mean nothing beside each other.
    """
    output_form = render.known_format(form)
    scales = asked.scales
    of_table = asked.what not in (LIST, CLAIMS)
    if asked.make and not of_table:
        raise UserError(f"--run needs one table, and {asked.what!r} is not the name of one.", "Name PAPER/TABLE.")
    if save is not None and asked.what != CLAIMS:
        raise UserError(
            "--save can only write the page of all claims.", "Use `ttabench paper claims --save claims.md`."
        )
    if asked.what == LIST:
        render.show([list_table()], output_form)
        return True
    if of_table:
        declared.table(asked.what)
        return _table(asked, scales[0], output_form, quiet)
    _claims(asked, scales, save, output_form)
    return True


def _stored(asked: Asked) -> Stored:
    from ttabench.papers.matching import stored

    for folder in asked.folders:
        if not folder.is_dir():
            raise UserError(f"--runs {folder} is not a folder.", "Name a folder of runs, or of such folders.")
        if not ((inside := stored([folder])).runs or inside.profiles):
            if inside.damaged:
                raise UserError(inside.damaged[0])
            raise UserError(f"There are no runs in {folder}.", "Name a folder of runs or profiles, or of such folders.")
    stored_runs = stored([asked.out, *asked.folders])
    for line in stored_runs.damaged:
        render.remark(f"Left out: {line}")
    return stored_runs


def _claims(asked: Asked, scales: Sequence[Scale], save: Path | None, form: render.Format) -> None:
    from ttabench.papers.tables import all_claims, claims_page, claims_table

    if save is not None and (save.suffix != ".md" or not save.parent.is_dir()):
        raise UserError(f"--save {save} cannot be written.", "Give a .md file in a folder that is there.")
    stored_runs = _stored(asked)
    if not (stored_runs.runs or stored_runs.profiles):
        raise UserError(f"There are no runs in {asked.out}.", "Name folders of runs with --runs.")
    if save is not None:
        write_atomically(save, claims_page(stored_runs))
        render.remark(f"Saved in {save}.")
        return
    rows = all_claims(stored_runs, scales)
    if form in ("json", "csv"):
        render.show([claims_table(CLAIMS, [row for own in rows.values() for row in own])], form)
    else:
        render.show([claims_table(of, own, of_tables=True) for of, own in rows.items()], form)


def _table(asked: Asked, scale: Scale, form: render.Format, quiet: bool) -> bool:
    from ttabench.papers.judging import RULE, RULE_OF_COSTS, judged
    from ttabench.papers.tables import beside_table, claims_table, reported_table

    of, which, table = declared.table(asked.what)
    if table.needs is not None:
        if asked.make:
            raise UserError(f"{asked.what} cannot be run here: {declared.why(table)}.", "See `ttabench paper list`.")
        render.show([reported_table(asked.what)], form)
        render.remark(f"None of its runs are made here: {declared.why(table)}.")
        return True
    stored_runs, failed = _stored(asked), 0
    if (file := declared.suites(of, which).get(scale)) is not None:
        missing = _missing(asked, scale, file, stored_runs)
        if asked.make and missing:
            failed = _made(missing, asked, talking=form == "table" and not quiet)
            stored_runs = _stored(asked)
        elif missing and not quiet:
            again = f"ttabench paper {asked.what}{f' --scale {scale}' if asked.scale else ''} --run"
            render.remark(f"{len(missing)} are missing: {again} --out {quote(str(asked.out))}")
    elif asked.make:
        there = ", ".join(declared.suites(of, which)) or table.stored_only
        raise UserError(f"{asked.what} has no runs at scale {scale}.", f"There are: {there}.")
    elif not quiet:
        render.remark(f"No suite makes its runs at scale {scale}: they are shown where they are stored.")
    rows = judged(of, which, stored_runs, [scale])
    render.show([beside_table(asked.what, stored_runs, scale), claims_table("claims", rows)], form)
    if form == "table" and not quiet:
        costs = any(row.claim.cost for row in rows)
        render.say([RULE, RULE_OF_COSTS] if costs else [RULE])
    return not failed


def _missing(asked: Asked, scale: Scale, file: Path, stored_runs: Stored) -> list[Run]:
    """The runs of a suite that are stored nowhere; says how many there are."""
    from ttabench.sweep.file import read
    from ttabench.sweep.grid import cells
    from ttabench.sweep.planning import planned

    if scale == "full" and not asked.make:
        render.remark(f"Its runs at full scale take a GPU: ttabench sweep {quote(str(file))}")
        return []
    suite = read(file)
    try:
        runs = planned(cells(suite), suite)
    except UserError as error:
        if asked.make:
            raise
        render.remark(f"Its runs cannot be made on this machine: {error}")
        return []
    there = {record.id for _, record in stored_runs.runs}
    missing = [run for run in runs if run.id not in there]
    render.remark(f"{asked.what} at scale {scale}: {len(runs)} runs, {len(runs) - len(missing)} stored ({file}).")
    return missing


def _made(runs: Sequence[Run], asked: Asked, *, talking: bool) -> int:
    """Make these runs; how many of them failed, each with a line that says why."""
    from ttabench.cli.sweep_runs import Screen
    from ttabench.sweep.driver import Manner, swept
    from ttabench.sweep.engines import Resources, engine

    manner = Manner(out=asked.out, engine=engine("local"), resources=Resources(jobs=asked.jobs))
    screen, labels, failed = Screen(runs, talking), {run.id: run.label for run in runs}, 0
    try:
        with closing(swept(runs, manner)) as reports:
            for report in reports:
                screen(report)
                if report.state == "failed":
                    failed += 1
                    render.remark(f"{labels[report.id]}: {report.reason}")
    finally:
        screen.stop()
    return failed
