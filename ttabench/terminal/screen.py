"""Tables on a screen of any width: no name, id or number is ever split.

What does not fit with a frame is shown without one; then columns that can be spared are left out, and a line says
which; then every row becomes a block of lines. A word that is wider than the screen is left to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ttabench.core.printable import printable
from ttabench.terminal.table import GLUE, Bold, Table, explained

COMFORT = 24
"""Cells of a text that wraps, at least, where it is that long."""
COMMAND = re.compile(r"(?:^|: )ttabench [a-z]")
"""A line with one is for pasting: the terminal wraps it, so that it is copied as one."""
FRAMES = {True: (1, 3), False: (-2, 2)}
"""Width around the cells, with a frame and without: of the edge, and of every column."""


@dataclass(frozen=True)
class Layout:
    """How a table is shown: the columns that are left, their widths, and whether in a frame; None for blocks."""

    table: Table
    widths: tuple[int, ...] = ()
    framed: bool | None = None
    spared: tuple[str, ...] = ()


def layout(table: Table, width: int, *, narrow: bool = True) -> Layout:
    """How a table, whose cells are `shown` already, is shown in so many cells of a terminal; where it has not to fit
    (`narrow`), it gets as many as it needs."""
    if table.prose:
        return Layout(table)
    if not narrow:
        return Layout(table, _widths(table, max(width, _least(table, True)), True), True)
    wanted = [name for name in table.spare if name in table.columns]
    for count in range(len(wanted) + 1):
        if best := _fitting(table, wanted[:count], width):
            # what went first may have room again where a wide column went after it
            for name in reversed(wanted[: max(0, count - 1)]):
                best = _fitting(table, [other for other in best.spared if other != name], width) or best
            return best
    return Layout(table)


def _fitting(table: Table, spared: Sequence[str], width: int) -> Layout | None:
    """The table without some columns, with or without a frame; None where neither has room."""
    left = table
    for name in spared:
        left = left.without(name)
    for framed in FRAMES:
        if _least(left, framed) <= width:
            return Layout(left, _widths(left, width, framed), framed, tuple(spared))
    return None


def draw(table: Table, screen: Console, *, narrow: bool) -> Table:
    """Print a table, its title above it, its caption below; returns it with the columns that had room."""
    drawn = layout(shown(table), screen.width, narrow=narrow)
    tell(table.folded().title, screen, "bold", wrap=narrow)
    if not table.rows and not table.prose:
        tell("(none)", screen, "", wrap=narrow)
    elif drawn.framed is None:
        _blocks(drawn.table, screen)
    else:
        screen.print(_grid(drawn), crop=False, soft_wrap=not narrow)
    if drawn.spared:
        left_out = ", ".join(name.lstrip("#") for name in drawn.spared)
        tell(f"Columns hidden (narrow screen): {left_out}.", screen, "dim", wrap=narrow)
    tell(table.caption, screen, "dim", wrap=narrow)
    return drawn.table


def draw_all(tables: Sequence[Table], screen: Console, *, narrow: bool) -> None:
    """Print tables, then what their headings mean: of the columns that had room in one of them."""
    tell("\n".join(explained([draw(table, screen, narrow=narrow) for table in tables])), screen, "dim", wrap=narrow)


def tell(text: str, screen: Console, style: str, *, wrap: bool) -> None:
    """Print lines; on a terminal they wrap between words, commands aside."""
    for line in printable(text).splitlines():
        lines = line if not wrap or COMMAND.search(line) else wrapped(line, screen.width)
        screen.print(Text(lines.replace(GLUE, " "), style=style), soft_wrap=True)


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many cells, cut between words; a wider word has a line of its own."""
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


def shown(table: Table) -> Table:
    """The table as its cells are printed: without what a terminal would obey, and folded."""

    def clean(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(type(cell)(printable(cell).expandtabs(4)) for cell in cells)

    names = {name: clean(getattr(table, name)) for name in ("columns", "names", "spare")}
    return replace(table, rows=tuple(map(clean, table.rows)), **names).folded()  # type: ignore[arg-type]


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _bounds(table: Table) -> list[tuple[int, int]]:
    """(least, most) cells of every column: headings wrap between words, as texts do."""
    bounds = []
    for place, column in enumerate(table.columns):
        heading, lines = column.lstrip("#"), [line for row in table.rows for line in row[place].split("\n")]
        longest = _longest(lines)
        least = longest
        if not table.whole(column):
            least = max(_longest([word for line in lines for word in line.split()]), min(longest, COMFORT))
        bounds.append((max(1, least, _longest(heading.split())), max(1, longest, cell_len(heading))))
    return bounds


def _least(table: Table, framed: bool) -> int:
    edge, between = FRAMES[framed]
    return edge + sum(least + between for least, _ in _bounds(table))


def _widths(table: Table, width: int, framed: bool) -> tuple[int, ...]:
    """A width for every column: what is left goes to headings and numbers first, then to texts evenly."""
    bounds = _bounds(table)
    widths = [least for least, _ in bounds]
    room = width - _least(table, framed)
    order = sorted(range(len(widths)), key=lambda place: (not table.whole(table.columns[place]), bounds[place][1]))
    for position, place in enumerate(order):
        even = room if table.whole(table.columns[place]) else room // (len(order) - position)
        more = min(even, bounds[place][1] - widths[place])
        widths[place] += more
        room -= more
    return tuple(widths)


def _grid(layout: Layout) -> RichTable:
    framed = bool(layout.framed)
    grid = RichTable(box=box.HEAVY_HEAD if framed else None, header_style="bold", pad_edge=framed,
                     padding=(0, 1) if framed else (0, 2, 0, 0))  # fmt: skip
    for column, width in zip(layout.table.columns, layout.widths, strict=True):
        grid.add_column(_text(column.lstrip("#"), width), justify="right" if column.startswith("#") else "left",
                        width=width, no_wrap=True, overflow="crop")  # fmt: skip
    for row in layout.table.rows:
        grid.add_row(*map(_text, row, layout.widths))
    return grid


def _text(cell: str, width: int) -> Text:
    return Text(wrapped(cell, width), style=_style(cell), no_wrap=True, overflow="crop")


def _style(cell: str) -> str:
    return "bold" if isinstance(cell, Bold) else ""


def _blocks(table: Table, screen: Console) -> None:
    """Every row as lines of heading and cell, below the cell of the first column; what follows a line of a cell stands
    under its first word."""
    headings = [column.lstrip("#") for column in table.columns]
    wide = _longest(headings[1:]) + 4
    for row in table.rows:
        tell(f"{headings[0]} {row[0]}".strip(), screen, "bold", wrap=True)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            first = f"  {heading}" + " " * (wide - 2 - cell_len(heading))
            text = wrapped(cell, max(1, screen.width - wide)).replace("\n", "\n" + " " * wide)
            if cell:
                text = cell if COMMAND.match(cell) else text
                screen.print(Text.assemble(first, (text, _style(cell))), soft_wrap=True)
