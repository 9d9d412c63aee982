"""A table as a value: what it says, and which of its columns may give way where a screen is narrow.

Table(title="runs", columns=("run", "method", "#n"), rows=(("3f0c2a9b71de", "icl", "32"),), names=("run",))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Cell = str | int | float | None


class Bold(str):
    """A cell that stands out in its table: bold on a screen and in Markdown, plain elsewhere."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to be shown in any format."""

    title: str
    columns: tuple[str, ...]
    """Headings; those that begin with "#" hold numbers and are aligned right."""
    rows: tuple[tuple[str, ...], ...]
    data: tuple[Mapping[str, Cell], ...] = ()
    """The same rows as exact values with their own keys, for CSV and JSON."""
    caption: str = ""
    names: tuple[str, ...] = ()
    """Columns whose cells stay on one line, as those of numbers do; all others wrap between words."""
    spare: tuple[str, ...] = ()
    """Columns that a narrow screen leaves out, the first one first."""
    shown_as_blocks: bool = False
    """On a screen, rows stand below each other as blocks, whatever its width."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """What headings mean; stands once below all tables that are shown together, where the column is."""

    def is_unwrapped(self, column: str) -> bool:
        """Whether the cells of a column stay on one line."""
        return column.startswith("#") or column in self.names

    def without(self, *columns: str) -> Table:
        """The same table without these columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        heads, *rows = (
            tuple(cells[index] for index in kept) for cells in (self.columns, *self.rows)
        )
        return replace(self, columns=heads, rows=tuple(rows))


def glossary_lines(tables: Sequence[Table]) -> list[str]:
    """The glossary of several tables, a line a heading."""
    lines = (
        line
        for table in tables
        for column, line in table.glossary.items()
        if column in table.columns
    )
    return list(dict.fromkeys(lines))
