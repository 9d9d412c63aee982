"""Tables of the page: those of `comparison_tables`, every cell with the number it is sorted by; and every run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.amounts import figure
from ttabench.core.errors import UserError
from ttabench.core.typed import as_typed
from ttabench.records.schema import RunRecord
from ttabench.report.about import about_tables
from ttabench.report.blocks import called
from ttabench.report.compare import Block, Comparison
from ttabench.report.comparison_tables import GLOSSARY, differences_table, entries_table, overview, steps_table
from ttabench.report.configuration import flat, whole
from ttabench.report.figures import shown
from ttabench.report.finding import file_called
from ttabench.report.pairing import seed_of
from ttabench.report.verdict import Outcome, state_outcomes
from ttabench.terminal.table import Bold, Table

Row: TypeAlias = dict[str, str]


class Cell(NamedTuple):
    """A cell as it is read and as it is sorted: numbers by their size, what is missing before them."""

    text: str
    order: float | str = ""
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table of the page."""

    name: str
    """Its id there; empty for one that has none."""
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    live: bool = True


MISSING = -1e308
"""Order of a number that is not known."""
UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = re.compile(r"[~<]?(-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?)(?: (\w+))?")
MARKS = {
    Outcome.HOLDS: "●", Outcome.HELPS: "◐", Outcome.EMPTY: "◐", Outcome.ANOTHER: "◐",
    Outcome.OPEN: "○", Outcome.HURTS: "○",
}  # fmt: skip
HELD = (
    "● own state is better than an empty one and another text's: it holds the text; ◐ better than one of them; ○ not "
    "shown to be better than either, or worse."
)
HEADINGS = {"": "block", "of": "best method"}
"""Of the table of all blocks, where a terminal needs none or a short one."""
ROUGH = "~: other programs ran, so the time is rough."


def tables_of(comparison: Comparison) -> list[Shown]:
    """All blocks beside each other, where there are several; every line; every difference. One block is not named."""
    blocks = comparison.blocks
    lines, pairs = list[Row](), list[Row]()
    for block in blocks:
        name = {"block": called(block.place, [other.place for other in blocks])} if len(blocks) > 1 else {}
        for row in _rows(entries_table(block, every=True)):
            value = f"#{block.place.metric} ± stderr"
            cells = [("#value ± stderr" if column == value else column, cell) for column, cell in row.items()]
            cells[1:1] = [("metric", block.place.metric)]
            lines.append(name | dict(cells))
        pairs += [name | row for row in (_rows(differences_table(block)) if block.differences else ())]
    tables = [_shown("lines", "Lines", ROUGH, lines), _shown("differences", "Differences", "", pairs)]
    if len(blocks) > 1 and (whole := overview(blocks)) is not None:
        rows, marked = _marked(comparison, _rows(whole))
        caption = f"{whole.title}; none is the floor, icl the ceiling; the best of the others is bold. {marked}"
        tables.insert(0, _shown("overview", "All blocks", caption.rstrip(), rows))
    return [table for table in tables if table.rows]


def _marked(comparison: Comparison, rows: list[Row]) -> tuple[list[Row], str]:
    """Rows of the table of all blocks, where a line is a method with a mark for what its own state holds; and what the
    marks mean."""
    if not rows or "method" not in rows[0]:
        return [{HEADINGS.get(column, column): cell for column, cell in row.items()} for row in rows], ""
    columns, found = list(rows[0])[1:], False
    for column, block in zip(columns, comparison.blocks, strict=True):
        outcomes = state_outcomes(comparison, block)
        for row in rows:
            mark = MARKS.get(outcomes.get(row["method"], Outcome.UNTESTED))
            if mark:
                cell, found = row[column], True
                row[column] = (Bold if isinstance(cell, Bold) else str)(f"{cell} {mark}")
    return rows, HELD if found else ""


def _rows(table: Table) -> list[Row]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _shown(name: str, title: str, caption: str, rows: Sequence[Row], *, live: bool = True) -> Shown:
    """Rows of cells by their columns; those of numbers begin with "#"."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    meanings = [meaning for column, meaning in GLOSSARY.items() if column in columns]
    cells = tuple(tuple(_cell(row.get(column, ""), column) for column in columns) for row in rows)
    return Shown(name=name, title=title, caption=" ".join(filter(None, [*meanings, caption])), rows=cells, live=live,
                 columns=tuple(column.removeprefix("#") for column in columns))  # fmt: skip


def _cell(text: str, column: str) -> Cell:
    order: float | str = text
    if column.startswith("#"):
        match = NUMBER.match(text)
        order = float(match[1].replace(",", "")) * UNITS.get(match[2], 1.0) if match else MISSING
    return Cell(text, order, isinstance(text, Bold))


def steps_of(block: Block) -> Shown | None:
    """Figures of the curves, for those who do not see them."""
    if not any(len(entry.steps) > 1 for entry in block.entries):
        return None
    caption = f"{block.place.metric} ± stderr by {block.entries[0].step.axis}"
    return _shown("", "Figures of the curves", caption, _rows(steps_table(block)), live=False)


def about_runs(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Every run that stands in a block, in the order of their lines: its facts, all settings and all costs."""
    places = [block.place for block in comparison.blocks]
    for block in comparison.blocks:
        for entry in block.entries:
            group = entry
            file = [("from", file_called(group.theirs))] if group.theirs else []
            for _, record in group.runs:
                row, config = record.value(group.metric), flat(whole(record.config).to_json())
                yield {
                    "id": record.id, "label": entry.label, "block": called(block.place, places),
                    "seed": seed_of(record),
                    "value": f"{row.metric} {shown(row.metric, row.value, row.stderr)}" if row else "",
                    "facts": (*file, *_facts(record)),
                    "settings": "\n".join(f"{key} = {as_typed(value) or '-'}" for key, value in config.items()),
                    "costs": "\n".join(f"{name.replace('_', ' ')} = {figure(name, value)}"
                                       for name, value in record.cost.items()),
                }  # fmt: skip


def _facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    try:
        table = about_tables(record, everything=False)[0]
    except UserError as error:  # of a method that is gone
        return (("command", str(error)),)
    return tuple(zip(table.columns[1:], map(str, table.rows[0][1:]), strict=True))
