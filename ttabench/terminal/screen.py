"""Tables on a screen of any width: no name, id or number is ever split.

What does not fit with a frame is shown without one; then columns that can be spared are left out, and a line says
which; then every row becomes a block of lines. A word that is wider than the screen is left to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Frame:
    """Width around the cells: `edge` + `between` for every column."""

    edge: int
    between: int
    framed: bool


FRAMES = (Frame(edge=1, between=3, framed=True), Frame(edge=-2, between=2, framed=False))


@dataclass(frozen=True)
class Layout:
    """How a table is shown: the columns that are left, their widths, and the frame; no frame for blocks."""

    table: Table
    widths: tuple[int, ...] = ()
    frame: Frame | None = None
    spared: tuple[str, ...] = ()


def layout(table: Table, width: int, *, narrow: bool = True) -> Layout:
    """How a table is shown in so many cells of a terminal.

    Args:
        table: cells that are `shown` already.
        width: cells of a line.
        narrow: whether it has to fit; else it gets as many cells as it needs.
    """
    if table.prose:
        return Layout(table)
    if not narrow:
        return Layout(table, _widths(table, max(width, _least(table, FRAMES[0])), FRAMES[0]), FRAMES[0])
    wanted = [name for name in table.spare if name in table.columns]
    for count in range(len(wanted) + 1):
        if best := _fitting(table, wanted[:count], width):
            # what went first may have room again where a wide column went after it
            for name in reversed(wanted[: max(0, count - 1)]):
                best = _fitting(table, [other for other in best.spared if other != name], width) or best
            return best
    return Layout(table)


def _fitting(table: Table, spared: Sequence[str], width: int) -> Layout | None:
    """The table without some columns, in the first frame that has room; None where none has."""
    left = table
    for name in spared:
        left = left.without(name)
    for frame in FRAMES:
        if _least(left, frame) <= width:
            return Layout(left, _widths(left, width, frame), frame, tuple(spared))
    return None


def draw(table: Table, screen: Console, *, narrow: bool) -> Table:
    """Print a table, its title above it, its caption below; returns it with the columns that had room."""
    drawn = layout(shown(table), screen.width, narrow=narrow)
    if table.narrower is not None and drawn.frame is None:
        return draw(table.narrower, screen, narrow=narrow)
    tell(table.folded().title, screen, "bold", wrap=narrow)
    if not table.rows and not table.prose:
        tell("(none)", screen, "", wrap=narrow)
    elif drawn.frame is None:
        _blocks(drawn.table, screen)
    else:
        screen.print(_grid(drawn), crop=False, soft_wrap=not narrow)
    if drawn.spared:
        left_out = ", ".join(name.lstrip("#") for name in drawn.spared)
        tell(f"Columns hidden (narrow screen): {left_out}.", screen, "dim", wrap=narrow)
    for line in table.caption.splitlines():
        tell(line, screen, "dim", wrap=narrow)
    return drawn.table


def draw_all(tables: Sequence[Table], screen: Console, *, narrow: bool) -> None:
    """Print tables, then what their headings mean: of the columns that had room in one of them."""
    drawn = [draw(table, screen, narrow=narrow) for table in tables]
    for line in explained(drawn):
        tell(line, screen, "dim", wrap=narrow)


def tell(text: str, screen: Console, style: str, *, wrap: bool) -> None:
    """Print lines; on a terminal they wrap between words, commands aside."""
    for line in printable(text).splitlines():
        lines = line if not wrap or COMMAND.search(line) else wrapped(line, screen.width)
        screen.print(Text(lines.replace(GLUE, " "), style=style), soft_wrap=True)


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many cells, cut between words; a wider word has a line of its own."""
    lines: list[str] = []
    for line in text.split("\n"):
        if cell_len(line) <= width:
            lines.append(line)
            continue
        now = ""
        for word in (word for word in re.split(r"[ \t]", line) if word):
            more = f"{now} {word}" if now else word
            if now and cell_len(more) > width:
                lines.append(now)
                more = word
            now = more
        lines.append(now)
    return "\n".join(lines)


def shown(table: Table) -> Table:
    """The table as its cells are printed: without what a terminal would obey, and folded."""

    def clean(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(type(cell)(printable(cell).expandtabs(4)) for cell in cells)

    return replace(
        table, rows=tuple(map(clean, table.rows)), columns=clean(table.columns), names=clean(table.names),
        spare=clean(table.spare),
    ).folded()  # fmt: skip


def _cells(table: Table) -> Iterator[tuple[str, list[str]]]:
    for place, column in enumerate(table.columns):
        yield column, [row[place] for row in table.rows]


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _lines(cells: Sequence[str]) -> list[str]:
    return [line for cell in cells for line in cell.split("\n")]


def _bounds(table: Table) -> list[tuple[int, int]]:
    """(least, most) cells of every column: headings wrap between words, as texts do."""
    bounds = []
    for column, cells in _cells(table):
        heading = column.lstrip("#")
        most = max(cell_len(heading), _longest(_lines(cells)))
        words = _longest(heading.split())
        if table.whole(column):
            words = max(words, _longest(_lines(cells)))
        else:
            words = max(words, _longest([word for cell in cells for word in cell.split()]))
            words = max(words, min(_longest(_lines(cells)), COMFORT))
        bounds.append((max(1, words), max(1, most)))
    return bounds


def _least(table: Table, frame: Frame) -> int:
    return frame.edge + sum(least + frame.between for least, _ in _bounds(table))


def _widths(table: Table, width: int, frame: Frame) -> tuple[int, ...]:
    """A width for every column: what is left goes to headings and numbers first, then to texts evenly."""
    bounds = _bounds(table)
    widths = [least for least, _ in bounds]
    room = width - _least(table, frame)
    order = sorted(range(len(widths)), key=lambda place: (not table.whole(table.columns[place]), bounds[place][1]))
    for position, place in enumerate(order):
        even = room if table.whole(table.columns[place]) else room // (len(order) - position)
        more = min(even, bounds[place][1] - widths[place])
        widths[place] += more
        room -= more
    return tuple(widths)


def _grid(layout: Layout) -> RichTable:
    table, frame = layout.table, layout.frame
    framed = frame is not None and frame.framed
    made = RichTable(
        box=box.HEAVY_HEAD if framed else None, header_style="bold", padding=(0, 1) if framed else (0, 2, 0, 0),
        pad_edge=framed,
    )  # fmt: skip
    for column, width in zip(table.columns, layout.widths, strict=True):
        right = column.startswith("#")
        heading = _text(column.lstrip("#"), width)
        made.add_column(heading, justify="right" if right else "left", width=width, no_wrap=True, overflow="crop")
    for row in table.rows:
        made.add_row(*map(_text, row, layout.widths))
    return made


def _text(cell: str, width: int) -> Text:
    return Text(wrapped(cell, width), style=_style(cell), no_wrap=True, overflow="crop")


def _style(cell: str) -> str:
    return "bold" if isinstance(cell, Bold) else ""


def _blocks(table: Table, screen: Console) -> None:
    """Every row as lines of heading and cell, below the cell of the first column."""
    headings = [column.lstrip("#") for column in table.columns]
    wide = _longest(headings[1:]) + 4
    for row in table.rows:
        tell(f"{headings[0]} {row[0]}".strip(), screen, "bold", wrap=True)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if cell:
                _field(heading, cell, wide, screen)


def _field(heading: str, cell: str, wide: int, screen: Console) -> None:
    """A line of a block; what follows stands under its first word."""
    first = f"  {heading}" + " " * (wide - 2 - cell_len(heading))
    whole = COMMAND.match(cell)
    text = cell if whole else wrapped(cell, max(1, screen.width - wide)).replace("\n", "\n" + " " * wide)
    screen.print(Text.assemble(first, (text, _style(cell))), soft_wrap=True)
