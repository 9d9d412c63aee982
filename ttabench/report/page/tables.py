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
from ttabench.report.comparison_tables import (
    differences_table,
    entries_table,
    every_label,
    headings,
    overview,
    steps_table,
)
from ttabench.report.configuration import flat, whole
from ttabench.report.entries import MARKS, best_of
from ttabench.report.figures import plain, shown
from ttabench.report.pairing import seed_of
from ttabench.report.selecting import file_called
from ttabench.report.verdict import state_outcomes
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
MOST_BLOCKS = 12
"""Columns of the grid of all blocks; of more blocks each has a row, with the best of its methods."""
UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = re.compile(r"[~<]?(-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?)(?: (\w+))?")
HELD = (
    "● own state is better than an empty one and another text's: it holds the text; ◐ better than one of them; ○ not "
    "shown to be better than either, or worse."
)
LINES = (
    "Every line: a method with its settings, over all seeds. Of gap: how far it goes from none (0 %) to icl "
    "(100 %). Trained: its parameters that were trained before it read the text. State: bytes that it keeps of the "
    "text. Ask ms: milliseconds to answer a query; adapt s: seconds to read the text. Front (Pareto): no other "
    "line of its block under its own state is at least as good in value and state (and ask ms, where all were "
    "measured on one calm machine), and better in one of them. ~: other programs ran, so the time is rough."
)
DIFFERENCES = (
    "Differences over the queries that both sides answered, with 95 % intervals. Holm: p adjusted for all tests of "
    "its family; bold below 0.05. Better / worse: the number of queries on which left is better, or worse."
)


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
    over_blocks = _grid(comparison) if len(blocks) <= MOST_BLOCKS else _overview(comparison)
    tables = [over_blocks] if len(blocks) > 1 else []
    tables += [_shown("lines", "Lines", LINES, lines), _shown("differences", "Differences", DIFFERENCES, pairs)]
    return [table for table in tables if table is not None and table.rows]


def _rows(table: Table) -> list[Row]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _shown(name: str, title: str, caption: str, rows: Sequence[Row], *, live: bool = True) -> Shown:
    """Rows of cells by their columns; those of numbers begin with "#"."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = tuple(tuple(_cell(row.get(column, ""), column) for column in columns) for row in rows)
    names = tuple(column.removeprefix("#") for column in columns)
    return Shown(name=name, title=title, caption=caption, columns=names, rows=cells, live=live)


def _cell(text: str, column: str) -> Cell:
    order: float | str = text
    if column.startswith("#"):
        match = NUMBER.match(text)
        order = float(match[1].replace(",", "")) * UNITS.get(match[2], 1.0) if match else MISSING
    return Cell(text, order, isinstance(text, Bold))


def _grid(comparison: Comparison) -> Shown:
    """A line a method under its own state, a column a block: its figure, and whether its state holds the text."""
    blocks = comparison.blocks
    title, names = headings(blocks)
    metrics = [block.place.metric for block in blocks]
    if len(set(metrics)) > 1:
        names = [f"{name} ({metric})" for name, metric in zip(names, metrics, strict=True)]
    outcomes = [state_outcomes(comparison, block) for block in blocks]
    rows: dict[str, Row] = {label: {"method": label} for label in every_label(blocks)}
    for name, block, held in zip(names, blocks, outcomes, strict=True):
        best = best_of(block.entries)
        for entry in (entry for entry in block.entries if entry.state_of == "own"):
            mark = held[entry.label].mark if entry.label in held else ""
            text = f"{plain(entry.metric, entry.value)}{MARKS[entry.aside]} {mark}".rstrip()
            rows[entry.label][f"#{name}"] = Bold(text) if entry in best else text
    caption = f"{title}; the best of the methods is bold, none is the floor, icl the ceiling."
    caption += f" {HELD}" if any(outcomes) else ""
    return _shown("overview", "All blocks", caption, [row for row in rows.values() if len(row) > 1])


def _overview(comparison: Comparison) -> Shown | None:
    """What `comparison_tables.overview` has."""
    table = overview(comparison.blocks)
    if table is None:
        return None
    names = {"": "block", "of": "best method"}
    rows = [{names.get(column, column): cell for column, cell in row.items()} for row in _rows(table)]
    caption = (
        f"{table.title}; none is the floor, icl the ceiling; the best of the others stands beside them, or is bold."
    )
    return _shown("overview", "All blocks", caption, rows)


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
            group = entry.group
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
