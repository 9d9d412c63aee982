"""Output on the standard streams: tables, notes, progress, and machine formats of the tables.

Results go to standard output, progress and notes to standard error. Control characters in names,
records and data are escaped. A table that is too wide for the screen first loses its optional
columns, with a note. If it is still too wide, its rows are printed as blocks.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
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
from ttabench.terminal.table import Bold, Cell as Cell, Table as Table, glossary_lines

Format = Literal["table", "markdown", "latex", "csv", "json"]
MIN_WRAPPED_CELLS = 16
"""Smallest width of a wrapped column, unless its text is shorter."""
MAX_TABLE_CELLS = 10_000
"""Largest width of a table that does not go to a terminal."""
COMMAND_PATTERN = re.compile(r"(?:^|: )ttabench [a-z]")
"""Command to copy: such a line is wrapped by the terminal only."""


def console(stderr: bool = False) -> Console:
    """Create a console that colours terminals only and respects NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else MAX_TABLE_CELLS,
        highlight=False,
        soft_wrap=False,
    )


def print_tables(tables: Sequence[Table], form: Format = "table") -> None:
    """Print tables on standard output. JSON is keyed by title; CSV has a column `table`."""
    if form == "json":
        print_json({table.title: [dict(row) for row in table.data] for table in tables})
    elif form == "csv":
        rows = [{"table": table.title, **row} for table in tables for row in table.data]
        columns = dict.fromkeys(["table", *(key for row in rows for key in row)])
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        _write(text.getvalue())
    elif form in ("markdown", "latex"):
        formatted = [*map(as_markdown if form == "markdown" else as_latex, tables)]
        if glossary := glossary_lines(tables):
            formatted.append(format_prose(glossary, form))
        sys.stdout.write(escape_control_characters("\n".join(formatted)))
    else:
        draw_tables(tables, console(), narrow=sys.stdout.isatty())


def print_json(value: Json) -> None:
    """Print JSON on standard output. Non-ASCII characters are escaped."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def print_line(text: str) -> None:
    """Print a line for other programs, such as a path. It is exact unless sent to a terminal."""
    _write(text + "\n")


def _write(text: str) -> None:
    sys.stdout.write(escape_control_characters(text) if sys.stdout.isatty() else text)


def print_sentences(lines: Sequence[str]) -> None:
    """Print sentences on standard output, one per line. A terminal wraps them between words."""
    print_wrapped("\n".join(lines), console(), "bold", wrap=sys.stdout.isatty())


def print_note(text: str, style: str = "yellow") -> None:
    """Print a note on standard error."""
    print_wrapped(text, console(stderr=True), style, wrap=sys.stderr.isatty())


def print_wrapped(text: str, screen: Console, style: str, *, wrap: bool) -> None:
    """Print lines, wrapped between words if `wrap`; commands are never wrapped."""
    for line in escape_control_characters(text).splitlines():
        words = [line]
        if wrap and not COMMAND_PATTERN.search(line):
            words = textwrap.wrap(
                line, screen.width, break_long_words=False, break_on_hyphens=False
            )
        screen.print(Text("\n".join(words), style=style), soft_wrap=True)


def draw_tables(tables: Sequence[Table], screen: Console, *, narrow: bool) -> None:
    """Print tables with title and caption, then the glossary of the visible columns.

    `narrow`: the width of the screen is a hard limit.
    """
    drawn = []
    for table in map(_escape_table, tables):
        print_wrapped(table.title, screen, "bold", wrap=narrow)
        visible = table
        for column in table.spare if narrow else ():
            if _min_width(visible) > screen.width and column in visible.columns:
                visible = visible.without(column)
        if not table.rows and not table.shown_as_blocks:
            print_wrapped("(none)", screen, "", wrap=narrow)
        elif table.shown_as_blocks or (narrow and _min_width(visible) > screen.width):
            visible = table
            _print_blocks(table, screen)
        else:
            screen.print(_make_grid(visible, screen), crop=False)
        if len(visible.columns) < len(table.columns):
            hidden = ", ".join(
                name.lstrip("#") for name in table.columns if name not in visible.columns
            )
            print_wrapped(f"Columns hidden (narrow screen): {hidden}.", screen, "dim", wrap=narrow)
        print_wrapped(table.caption, screen, "dim", wrap=narrow)
        drawn.append(visible)
    print_wrapped("\n".join(glossary_lines(drawn)), screen, "dim", wrap=narrow)


def _escape_table(table: Table) -> Table:
    """Escape the control characters of all cells."""

    def clean(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(type(cell)(escape_control_characters(cell).expandtabs(4)) for cell in cells)

    names = {name: clean(getattr(table, name)) for name in ("columns", "names", "spare")}
    return replace(table, rows=tuple(map(clean, table.rows)), **names)  # type: ignore[arg-type]


def _column_widths(table: Table) -> list[tuple[int, int]]:
    """Return (least width without splitting words, width of the longest line) of every column."""
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
    """Return the least width of a table with its frame."""
    return sum(least for least, _ in _column_widths(table)) + 3 * len(table.columns) + 1


def _make_grid(table: Table, screen: Console) -> RichTable:
    """Lay out the table. Spare width goes first to the columns that need little."""
    grid, widths = RichTable(box=box.HEAVY_HEAD, header_style="bold"), _column_widths(table)
    spare_width = screen.width - _min_width(table)
    assigned = dict[int, int]()
    for place in sorted(range(len(widths)), key=lambda place: widths[place][1] - widths[place][0]):
        least, most = widths[place]
        assigned[place] = min(most, least + max(0, spare_width // (len(widths) - len(assigned))))
        spare_width -= assigned[place] - least
    for place, column in enumerate(table.columns):
        justify: Literal["right", "left"] = "right" if column.startswith("#") else "left"
        grid.add_column(
            Text(column.lstrip("#")), justify=justify, width=assigned[place], overflow="fold"
        )
    for row in table.rows:
        grid.add_row(*(Text(cell, style="bold" if isinstance(cell, Bold) else "") for cell in row))
    return grid


def _print_blocks(table: Table, screen: Console) -> None:
    """Print every row as its first cell, then lines of heading and cell. Commands do not wrap."""
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
    """Format a table as GitHub Markdown: bold title, table, caption."""
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


LATEX_ESCAPES = str.maketrans(
    {
        **{mark: rf"\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{mark: f"${mark}$" for mark in "<>"},
        "±": r"$\pm$",
        "−": "$-$",
        "≈": r"$\approx$",
        "×": r"$\times$",
        "\n": " ",
    }
)


def as_latex(table: Table) -> str:
    """Format a table for LaTeX with the package booktabs. Title and caption are comments."""
    heads = [column.lstrip("#").translate(LATEX_ESCAPES) for column in table.columns]
    sides = "".join("r" if column.startswith("#") else "l" for column in table.columns)
    head, *body = (" & ".join(row) + r" \\" for row in [heads, *map(_latex_cells, table.rows)])
    return "\n".join(
        [
            format_prose([table.title], "latex") + rf"\begin{{tabular}}{{{sides}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"),
            format_prose([table.caption] if table.caption else [], "latex"),
        ]
    )


def _latex_cells(row: Sequence[str]) -> Iterator[str]:
    for cell in row:
        text = cell.translate(LATEX_ESCAPES)
        yield rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text


def format_prose(lines: Sequence[str], form: Format) -> str:
    """Format lines next to tables: comments for LaTeX, as they are for Markdown."""
    mark = "% " if form == "latex" else ""
    return "".join(f"{mark}{' '.join(line.split())}\n" for line in lines)
