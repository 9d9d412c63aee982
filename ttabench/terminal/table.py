"""Table as a value: its content, and the columns that a narrow screen may hide.

Table(title="runs", columns=("run", "#n"), rows=(("3f0c2a9b71de", "32"),), names=("run",))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Cell = str | int | float | None
DataRow: TypeAlias = Mapping[str, Any]
"""Exact values of a row by key. Keys that begin with "_" are for tables only, not for CSV and JSON."""
Columns: TypeAlias = Mapping[str, str | Callable[[Any], str]]
"""Key of the value, or a function that formats a row, by heading."""


class Bold(str):
    """Cell that is bold on a screen and in Markdown, plain elsewhere."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table that can be printed in any format."""

    title: str
    columns: tuple[str, ...]
    """Headings. Columns that start with "#" contain numbers and are aligned right."""
    rows: tuple[tuple[str, ...], ...]
    data: tuple[Mapping[str, Cell], ...] = ()
    """Rows as exact values with their own keys, for CSV and JSON."""
    caption: str = ""
    names: tuple[str, ...] = ()
    """Columns that are not wrapped, like number columns. All others wrap between words."""
    spare: tuple[str, ...] = ()
    """Optional columns that a narrow screen hides, in this order."""
    shown_as_blocks: bool = False
    """True if a screen always shows the rows as blocks."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Explanations of headings, printed once below all tables shown together."""

    def is_unwrapped(self, column: str) -> bool:
        """True if the cells of a column are not wrapped."""
        return column.startswith("#") or column in self.names

    @classmethod
    def of(cls, title: str, data: Sequence[DataRow], columns: Columns, **more: Any) -> Table:
        """Return the table of these rows: formatted by `columns`, and exact for CSV and JSON."""
        rows = tuple(
            tuple(
                format_cell(row[column]) if isinstance(column, str) else column(row)
                for column in columns.values()
            )
            for row in data
        )
        exact = tuple({key: value for key, value in row.items() if key[0] != "_"} for row in data)
        return cls(title=title, columns=tuple(columns), rows=rows, data=exact, **more)

    def without(self, *columns: str) -> Table:
        """Return the table without these columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        heads, *rows = (
            tuple(cells[index] for index in kept) for cells in (self.columns, *self.rows)
        )
        return replace(self, columns=heads, rows=tuple(rows))


def format_cell(value: Any) -> str:
    """Format an exact value: `yes` for true, empty for false, and 1,200 for a count."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else str(value)


def glossary_lines(tables: Sequence[Table]) -> list[str]:
    """Return the glossary of several tables, one line per heading."""
    lines = (
        line
        for table in tables
        for column, line in table.glossary.items()
        if column in table.columns
    )
    return list(dict.fromkeys(lines))
