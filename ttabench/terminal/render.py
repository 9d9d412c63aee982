"""Output on the streams: tables on a screen of any width, remarks, progress, and machine formats of the same tables.

Results go to standard output, progress and remarks to standard error, so a pipe carries results only. What names,
records and data hold is shown, never obeyed by a terminal. On a screen no name, id or number is split: a table that
does not fit loses its frame, then the columns that can be spared, and a line says which; then rows become blocks.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ttabench.core.errors import UnknownName, printable
from ttabench.core.types import Json
from ttabench.terminal.progress_bars import progress as progress
from ttabench.terminal.table import GLUE, Bold, explained
from ttabench.terminal.table import Cell as Cell
from ttabench.terminal.table import Table as Table

Format = Literal["table", "markdown", "csv", "json"]
FORMATS: tuple[Format, ...] = ("table", "markdown", "csv", "json")
COMFORT = 24
"""Cells of a text that wraps, at least, where it is that long."""
COMMAND = re.compile(r"(?:^|: )ttabench [a-z]")
"""A line with one is for pasting: the terminal wraps it, so that it is copied as one."""


def known_format(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise UnknownName("format", name, list(FORMATS))
    return name


def console(stderr: bool = False) -> Console:
    """A console that colours only terminals and respects NO_COLOR; as wide as needed where nobody watches."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 160, highlight=False, soft_wrap=False)


def show(tables: Sequence[Table], form: Format = "table") -> None:
    """Print tables on standard output. JSON is keyed by title, CSV tells tables apart by the column `table`."""
    if form == "json":
        print_json({table.title: [dict(row) for row in table.data] for table in tables})
    elif form == "csv":
        _write(_as_csv(tables))
    elif form == "markdown":
        glossary = "".join(f"{line}\n" for line in explained(tables))
        sys.stdout.write(printable("\n".join([*map(as_markdown, tables), *([glossary] if glossary else [])])))
    else:
        draw(tables, console(), narrow=sys.stdout.isatty())


def print_json(value: Json) -> None:
    """JSON on standard output, for machines; what is not ASCII as escapes, which no terminal obeys."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def print_line(text: str) -> None:
    """A line on standard output for other programs, such as a path: exact, unless somebody watches."""
    _write(text + "\n")


def _write(text: str) -> None:
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def say(lines: Sequence[str]) -> None:
    """Sentences on standard output, a line each; on a terminal they wrap between words."""
    tell("\n".join(lines), console(), "bold", wrap=sys.stdout.isatty())


def remark(text: str, style: str = "yellow") -> None:
    """One line on standard error."""
    tell(text, console(stderr=True), style, wrap=sys.stderr.isatty())


def tell(text: str, screen: Console, style: str, *, wrap: bool) -> None:
    """Print lines; on a terminal they wrap between words, commands aside."""
    for line in printable(text).splitlines():
        lines = _wrapped(line, screen.width) if wrap and not COMMAND.search(line) else line
        screen.print(Text(lines.replace(GLUE, " "), style=style), soft_wrap=True)


def _wrapped(text: str, width: int) -> str:
    """Lines of at most so many cells, cut between words; a wider word has a line of its own. (Neither textwrap nor rich
    does: one takes every character for a cell, the other crops before some wide ones.)"""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for word in [line] if cell_len(line) <= width else filter(None, re.split(r"[ \t]", line)):
            more = f"{lines[-1]} {word}" if lines[-1] else word
            if lines[-1] and cell_len(more) > width:
                lines.append(word)
            else:
                lines[-1] = more
    return "\n".join(lines)


def draw(tables: Sequence[Table], screen: Console, *, narrow: bool) -> None:
    """Print tables, each with its title above and its caption below, then what the headings that had room mean;
    `narrow`: the width of the screen cannot be exceeded."""
    drawn = []
    for table in map(_clean, tables):
        tell(table.title, screen, "bold", wrap=narrow)
        grid, left = _fitted(table, screen.width, narrow)
        if not table.rows and not table.prose:
            tell("(none)", screen, "", wrap=narrow)
        elif grid is None:
            _blocks(table, screen)
        else:
            screen.print(grid, crop=False, soft_wrap=not narrow)
        if len(left.columns) < len(table.columns):
            hidden = ", ".join(name.lstrip("#") for name in table.columns if name not in left.columns)
            tell(f"Columns hidden (narrow screen): {hidden}.", screen, "dim", wrap=narrow)
        tell(table.caption, screen, "dim", wrap=narrow)
        drawn.append(left)
    tell("\n".join(explained(drawn)), screen, "dim", wrap=narrow)


def _clean(table: Table) -> Table:
    """The table as its cells are printed: without what a terminal would obey, and folded."""

    def clean(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(type(cell)(printable(cell).expandtabs(4)) for cell in cells)

    names = {name: clean(getattr(table, name)) for name in ("columns", "names", "spare")}
    return replace(table, rows=tuple(map(clean, table.rows)), **names).folded()  # type: ignore[arg-type]


def _fitted(table: Table, width: int, narrow: bool) -> tuple[RichTable | None, Table]:
    """How a table is drawn in so many cells, None as blocks; and with the columns that it has then."""
    spare = [name for name in table.spare if name in table.columns] if narrow else []
    for count in range(len(spare) + 1) if not table.prose else ():
        left = table.without(*spare[:count])
        for framed in (True, False):
            widths, room = _widths(left, width - (3 * len(left.columns) + 1 if framed else 2 * len(left.columns) - 2))
            if room >= 0 or not narrow:
                return _grid(left, widths, framed), left
    return None, table


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _widths(table: Table, width: int) -> tuple[list[int], int]:
    """A width for every column, and what is left of so many cells, less than 0 where these do not suffice: first all
    get what no word is split in, then headings and numbers what they would have, then texts an even part."""
    bounds = []
    for column, *cells in zip(table.columns, *table.rows, strict=True):
        heading, lines = column.lstrip("#"), [line for cell in cells for line in cell.split("\n")]
        least = longest = _longest(lines)
        if not table.whole(column):
            least = max(_longest([word for line in lines for word in line.split()]), min(longest, COMFORT))
        bounds.append((max(1, least, _longest(heading.split())), max(1, longest, cell_len(heading))))
    widths = [least for least, _ in bounds]
    room = left = width - sum(widths)
    order = sorted(range(len(widths)), key=lambda place: (not table.whole(table.columns[place]), bounds[place][1]))
    for position, place in enumerate(order):
        even = left if table.whole(table.columns[place]) else left // (len(order) - position)
        more = max(0, min(even, bounds[place][1] - widths[place]))
        widths[place] += more
        left -= more
    return widths, room


def _grid(table: Table, widths: Sequence[int], framed: bool) -> RichTable:
    grid = RichTable(box=box.HEAVY_HEAD if framed else None, header_style="bold", pad_edge=framed,
                     padding=(0, 1) if framed else (0, 2, 0, 0))  # fmt: skip
    for column, width in zip(table.columns, widths, strict=True):
        grid.add_column(_text(column.lstrip("#"), width), justify="right" if column.startswith("#") else "left",
                        width=width, no_wrap=True, overflow="crop")  # fmt: skip
    for row in table.rows:
        grid.add_row(*map(_text, row, widths))
    return grid


def _text(cell: str, width: int) -> Text:
    style = "bold" if isinstance(cell, Bold) else ""
    return Text(_wrapped(cell, width), style=style, no_wrap=True, overflow="crop")


def _blocks(table: Table, screen: Console) -> None:
    """Every row as lines of heading and cell, below the cell of the first column; what follows a line of a cell stands
    under its first word."""
    headings = [column.lstrip("#") for column in table.columns]
    wide = _longest(headings[1:]) + 4
    for row in table.rows:
        tell(f"{headings[0]} {row[0]}".strip(), screen, "bold", wrap=True)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            first = f"  {heading}".ljust(wide)
            if cell:
                text = cell if COMMAND.match(cell) else _wrapped(cell, max(1, screen.width - wide))
                screen.print(Text(first + text.replace("\n", "\n" + " " * wide)), soft_wrap=True)


def as_markdown(table: Table) -> str:
    """A GitHub table under a bold title, with its caption below."""
    heads = [column.lstrip("#") for column in table.columns]
    rules = ["---:" if column.startswith("#") else "---" for column in table.columns]
    body = [[_in_markdown(cell) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in [heads, rules, *body]]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", table.caption] if table.caption else []), ""])


def _in_markdown(cell: str) -> str:
    text = cell.replace("|", "\\|").replace("\n", " ")
    return f"**{text}**" if isinstance(cell, Bold) else text


def _as_csv(tables: Sequence[Table]) -> str:
    keys = list(dict.fromkeys(key for table in tables for row in table.data for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["table", *keys], restval="", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        writer.writerows({"table": table.title, **row} for row in table.data)
    return text.getvalue()
