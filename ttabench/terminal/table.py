"""Table as a value: its content, and the columns that a narrow screen may hide.

Table(title="runs", columns=("run", "#n"), rows=(("3f0c2a9b71de", "32"),), names=("run",))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Cell = str | int | float | None


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

    def without(self, *columns: str) -> Table:
        """Return the table without these columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        heads, *rows = (
            tuple(cells[index] for index in kept) for cells in (self.columns, *self.rows)
        )
        return replace(self, columns=heads, rows=tuple(rows))


def glossary_lines(tables: Sequence[Table]) -> list[str]:
    """Return the glossary of several tables, one line per heading."""
    lines = (
        line
        for table in tables
        for column, line in table.glossary.items()
        if column in table.columns
    )
    return list(dict.fromkeys(lines))
