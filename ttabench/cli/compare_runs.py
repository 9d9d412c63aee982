"""`ttabench compare`: which runs, which tables, in which form, and where to."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import write_bytes_atomically
from ttabench.core.printable import printable
from ttabench.report.compare import Comparison, compared
from ttabench.report.comparison_tables import comparison_data, comparison_tables
from ttabench.report.selecting import Selected, Wanted, selected
from ttabench.report.verdict import sentences, verdict
from ttabench.terminal import render
from ttabench.terminal.table import Table

PARQUET = "parquet"
MANY_BLOCKS = 3
"""From more on, what is shorter is named."""
MOST_BLOCKS = 12
"""Of more, people are shown the first lines and one table, unless they ask for all."""
ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json", ".parquet": PARQUET}
"""Of files to save to, and the form that each asks for."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options as typed."""

    names: Sequence[str] = ()
    submissions: Sequence[Path] = ()
    """Files with runs of others."""
    out: Path
    metric: str = ""
    wanted: Wanted = field(default_factory=Wanted)
    all_pairs: bool = False
    diff: bool = False
    flips: bool = False
    strict: bool = False
    summary: bool = False
    every: bool = False
    """Every block, however many there are."""

    def in_short(self, blocks: int) -> bool:
        """Whether a terminal or a pipe gets the first lines and one table of so many blocks."""
        return self.summary or (blocks > MOST_BLOCKS and not (self.every or self.all_pairs))


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Where the comparison goes: a form on standard output, or a file; and a picture."""

    form: str = "table"
    save: Path | None = None
    picture: Path | None = None

    def chosen(self) -> str:
        """The form, that of the file where one is named.

        Raises:
            UserError: an unknown form or ending; a picture or a file that cannot be written.
        """
        if self.picture is not None:
            from ttabench.report.pictures import check_path

            check_path(self.picture)
        form = self.form
        if self.save is not None:
            if self.save.suffix.lower() not in ENDINGS:
                raise UserError(f"--save {self.save} has no known ending.", f"Use {', '.join(ENDINGS)}.")
            if not self.save.parent.is_dir() or self.save.is_dir() or self.save.is_symlink():
                raise UserError(f"--save {self.save} cannot be written.", "Give a file in a folder that is there.")
            form = ENDINGS[self.save.suffix.lower()]
        if form not in (*render.FORMATS, PARQUET):
            raise UnknownName("format", form, [*render.FORMATS, PARQUET])
        if form == PARQUET and self.save is None and sys.stdout.isatty():
            raise UserError("Parquet is binary, and this is a terminal.", "Redirect it, or give --save table.parquet.")
        return form


def compare(asked: Asked, delivery: Delivery) -> bool:
    """Show a comparison; False where it is asked to be strict, and something is wrong with it."""
    form = delivery.chosen()
    if asked.summary and asked.every:
        raise UserError("Both --summary and --all are given.", "Give one of them.")
    comparison, remarks = comparison_of(asked)
    for line in remarks:
        render.remark(line)
    if delivery.picture is not None:
        from ttabench.report.plots import plot

        plot(comparison, delivery.picture)
    more = _more(asked, comparison, every=form not in ("table", "markdown"))
    blocks, for_people = len(comparison.blocks), form == "table" and delivery.save is None
    short = asked.in_short(blocks) if for_people else asked.summary
    _deliver(form, delivery.save, _Shown(comparison, short, more))
    if for_people and short and not asked.summary:
        render.remark(
            f"{blocks} blocks in one table: --all shows each; --task, --method and names of runs choose some."
        )
    elif for_people and not short and blocks > MANY_BLOCKS:
        render.remark(f"{blocks} blocks: --summary shows the first lines and one table.")
    return not asked.strict or _is_sound(comparison)


def comparison_of(asked: Asked) -> tuple[Comparison, list[str]]:
    """The comparison of the runs that were asked for, and a line for each thing that was left out of it."""
    with _without_collector():
        chosen = selected(asked.names, asked.out, asked.wanted, asked.submissions)
        comparison = compared(chosen.runs, asked.metric, all_pairs=asked.all_pairs, damaged=chosen.damaged)
    return comparison, _left_out(chosen, comparison, asked)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hundreds of thousands of small values, none of them garbage: looking them through takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _left_out(chosen: Selected, comparison: Comparison, asked: Asked) -> list[str]:
    """A line for what was named and holds no run, for every damaged run, and for those that lack the metric."""
    lines = [*skipped_names(chosen, asked), *chosen.alike]
    lines += [f"Left out: {line}" for line in comparison.damaged]
    if lacking := len(comparison.without_metric):
        lack = "lacks" if lacking == 1 else "lack"
        lines.append(f"Left out {lacking} of {len(chosen.runs)} runs, which {lack} the metric.")
    return lines


def skipped_names(chosen: Selected, asked: Asked) -> list[str]:
    """A line for what was named and holds no run; none where all holds some."""
    if not chosen.skipped:
        return []
    some = ", ".join(chosen.skipped[:3]) + (", ..." if len(chosen.skipped) > 3 else "")
    return [f"Skipped {len(chosen.skipped)} of {len(asked.names)} names, which hold no runs: {some}"]


def _more(asked: Asked, comparison: Comparison, *, every: bool) -> list[Table]:
    """Tables that are asked for beside the comparison."""
    tables = []
    if asked.diff:
        from ttabench.report.config_diff import differing

        tables.append(differing(comparison))
    if asked.flips:
        from ttabench.report.flips import flips_tables

        changed = flips_tables(comparison, every=every)
        whole = tuple(row for table in changed for row in table.data)
        tables += [Table(title="flips", columns=(), rows=(), data=whole)] if every else changed
    return tables


@dataclass(frozen=True)
class _Shown:
    """The tables and data of a comparison."""

    found: Comparison
    summary: bool
    more: Sequence[Table]

    def tables(self) -> list[Table]:
        """For people."""
        return [*comparison_tables(self.found, summary=self.summary), *self.more]

    def data(self) -> list[Table]:
        """For machines."""
        return [*comparison_data(self.found)[: 1 if self.summary else None], *self.more]


def _deliver(form: str, save: Path | None, showing: _Shown) -> None:
    if form == PARQUET:
        from ttabench.report.export import as_parquet

        content = as_parquet(showing.data())
        if save is None:
            sys.stdout.buffer.write(content)
            return
    else:
        text = io.StringIO()
        if save is None:
            _show(form, showing)
            return
        with redirect_stdout(text):
            _show(form, showing)
        content = text.getvalue().encode("utf-8", "backslashreplace")
    write_bytes_atomically(save, content)
    render.remark(f"Saved in {save}.")


def _show(form: str, showing: _Shown) -> None:
    if form == "json":
        data = {table.title: [dict(row) for row in table.data] for table in showing.data()}
        render.print_json({"verdict": verdict(showing.found), **data})
    elif form == "csv":
        render.show(showing.data(), "csv")
    else:
        if form == "table":
            render.say(sentences(showing.found))
        else:
            sys.stdout.write(printable("\n\n".join([*sentences(showing.found), ""])))
        render.show(showing.tables(), render.known_format(form))


def _is_sound(comparison: Comparison) -> bool:
    from ttabench.report.problems import problems

    faults = problems(comparison)
    for line in faults:
        render.remark(f"Strict: {line}.")
    return not faults
