"""Output on the streams: tables on a screen of any width, remarks, progress, and machine formats of the same tables.

Results go to standard output, progress and remarks to standard error, so a pipe carries results only. What names,
records and data hold is shown, never obeyed by a terminal. A table that does not fit a screen loses the columns that
can be spared, and a line says which; then its rows become blocks.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ttabench.core.errors import escape_control_characters
from ttabench.core.types import Json
from ttabench.terminal.progress_bars import show_progress as show_progress
from ttabench.terminal.table import Bold, glossary_lines
from ttabench.terminal.table import Cell as Cell
from ttabench.terminal.table import Table as Table

Format = Literal["table", "markdown", "csv", "json"]
MIN_WRAPPED_CELLS = 16
"""Cells of a text that wraps, at least, where it is that long."""
MAX_TABLE_CELLS = 10_000
"""Cells of a table, at most, where nobody watches."""
COMMAND_PATTERN = re.compile(r"(?:^|: )ttabench [a-z]")
"""A line with one is for pasting: the terminal wraps it, so that it is copied as one."""


def console(stderr: bool = False) -> Console:
    """A console that colours only terminals and respects NO_COLOR; as wide as needed where nobody watches."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else MAX_TABLE_CELLS,
        highlight=False,
        soft_wrap=False,
    )


def print_tables(tables: Sequence[Table], form: Format = "table") -> None:
    """Print tables on standard output. JSON is keyed by title, CSV tells tables apart by the column `table`."""
    if form == "json":
        print_json({table.title: [dict(row) for row in table.data] for table in tables})
    elif form == "csv":
        import pandas as pd

        rows = [{"table": table.title, **row} for table in tables for row in table.data]
        _write(
            pd.DataFrame(rows, columns=None if rows else ["table"], dtype=object).to_csv(
                index=False
            )
        )
    elif form == "markdown":
        glossary = "".join(f"{line}\n" for line in glossary_lines(tables))
        sys.stdout.write(
            escape_control_characters(
                "\n".join([*map(as_markdown, tables), *([glossary] if glossary else [])])
            )
        )
    else:
        draw_tables(tables, console(), narrow=sys.stdout.isatty())


def print_json(value: Json) -> None:
    """JSON on standard output, for machines; what is not ASCII as escapes, which no terminal obeys."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def print_line(text: str) -> None:
    """A line on standard output for other programs, such as a path: exact, unless somebody watches."""
    _write(text + "\n")


def _write(text: str) -> None:
    sys.stdout.write(escape_control_characters(text) if sys.stdout.isatty() else text)


def print_sentences(lines: Sequence[str]) -> None:
    """Sentences on standard output, a line each; on a terminal they wrap between words."""
    print_wrapped("\n".join(lines), console(), "bold", wrap=sys.stdout.isatty())


def print_note(text: str, style: str = "yellow") -> None:
    """One line on standard error."""
    print_wrapped(text, console(stderr=True), style, wrap=sys.stderr.isatty())


def print_wrapped(text: str, screen: Console, style: str, *, wrap: bool) -> None:
    """Print lines; on a terminal they wrap between words, commands aside."""
    for line in escape_control_characters(text).splitlines():
        words = [line]
        if wrap and not COMMAND_PATTERN.search(line):
            words = textwrap.wrap(
                line, screen.width, break_long_words=False, break_on_hyphens=False
            )
        screen.print(Text("\n".join(words), style=style), soft_wrap=True)


def draw_tables(tables: Sequence[Table], screen: Console, *, narrow: bool) -> None:
    """Print tables, each with its title above and its caption below, then what the headings that had room mean;
    `narrow`: the width of the screen cannot be exceeded."""
    drawn = []
    for table in map(_escape_table, tables):
        print_wrapped(table.title, screen, "bold", wrap=narrow)
        left = table
        for column in table.spare if narrow else ():
            if _min_width(left) > screen.width and column in left.columns:
                left = left.without(column)
        if not table.rows and not table.shown_as_blocks:
            print_wrapped("(none)", screen, "", wrap=narrow)
        elif table.shown_as_blocks or (narrow and _min_width(left) > screen.width):
            left = table
            _print_blocks(table, screen)
        else:
            screen.print(_make_grid(left, screen), crop=False)
        if len(left.columns) < len(table.columns):
            hidden = ", ".join(
                name.lstrip("#") for name in table.columns if name not in left.columns
            )
            print_wrapped(f"Columns hidden (narrow screen): {hidden}.", screen, "dim", wrap=narrow)
        print_wrapped(table.caption, screen, "dim", wrap=narrow)
        drawn.append(left)
    print_wrapped("\n".join(glossary_lines(drawn)), screen, "dim", wrap=narrow)


def _escape_table(table: Table) -> Table:
    """The table as its cells are printed: without what a terminal would obey."""

    def clean(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(type(cell)(escape_control_characters(cell).expandtabs(4)) for cell in cells)

    names = {name: clean(getattr(table, name)) for name in ("columns", "names", "spare")}
    return replace(table, rows=tuple(map(clean, table.rows)), **names)  # type: ignore[arg-type]


def _column_widths(table: Table) -> list[tuple[int, int]]:
    """Of every column the least width, in which no name, number or word is split, and that of its longest line."""
    widths = []
    for column, *cells in zip(table.columns, *table.rows, strict=True):
        heading, lines = column.lstrip("#"), [line for cell in cells for line in cell.split("\n")]
        words = (
            lines
            if table.is_unwrapped(column)
            else [word for line in lines for word in line.split()]
        )
        longest = max(map(cell_len, [*lines, ""]))
        least = max(
            *map(cell_len, [*words, *heading.split(), " "]), min(longest, MIN_WRAPPED_CELLS)
        )
        widths.append((least, max(least, longest, cell_len(heading))))
    return widths


def _min_width(table: Table) -> int:
    """Cells that a table takes with its frame, at least."""
    return sum(least for least, _ in _column_widths(table)) + 3 * len(table.columns) + 1


def _make_grid(table: Table, screen: Console) -> RichTable:
    """The table; columns share what the screen has room for, those that need little of it first."""
    grid, widths = RichTable(box=box.HEAVY_HEAD, header_style="bold"), _column_widths(table)
    room = screen.width - _min_width(table)
    given = dict[int, int]()
    for place in sorted(range(len(widths)), key=lambda place: widths[place][1] - widths[place][0]):
        least, most = widths[place]
        given[place] = min(most, least + max(0, room // (len(widths) - len(given))))
        room -= given[place] - least
    for place, column in enumerate(table.columns):
        justify: Literal["right", "left"] = "right" if column.startswith("#") else "left"
        grid.add_column(
            Text(column.lstrip("#")), justify=justify, width=given[place], overflow="fold"
        )
    for row in table.rows:
        grid.add_row(*(Text(cell, style="bold" if isinstance(cell, Bold) else "") for cell in row))
    return grid


def _print_blocks(table: Table, screen: Console) -> None:
    """Every row as lines of heading and cell, below the cell of the first column; a command is one line, to copy."""
    headings = [column.lstrip("#") for column in table.columns]
    wide = max(map(cell_len, headings[1:]), default=0) + 4
    for row in table.rows:
        print_wrapped(f"{headings[0]} {row[0]}".strip(), screen, "bold", wrap=True)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if COMMAND_PATTERN.match(cell):
                screen.print(Text(f"  {heading}".ljust(wide) + cell), soft_wrap=True)
            elif cell:
                lines = RichTable.grid(padding=0)
                lines.add_column(width=wide)
                lines.add_row(Text(f"  {heading}"), Text(cell, overflow="fold"))
                screen.print(lines)


def as_markdown(table: Table) -> str:
    """A GitHub table under a bold title, with its caption below."""
    heads = [column.lstrip("#") for column in table.columns]
    rules = ["---:" if column.startswith("#") else "---" for column in table.columns]
    body = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in [heads, rules, *body]]
    return "\n".join(
        [f"**{table.title}**", "", *lines, *(["", table.caption] if table.caption else []), ""]
    )


def _markdown_cell(cell: str) -> str:
    text = cell.replace("|", "\\|").replace("\n", " ")
    return f"**{text}**" if isinstance(cell, Bold) else text
