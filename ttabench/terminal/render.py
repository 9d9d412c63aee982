"""Output on the streams: tables, remarks, progress, and the machine formats of the same tables.

Results go to standard output, progress and remarks to standard error, so a pipe carries results only. What names,
records and data hold is shown, never obeyed by a terminal.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from ttabench.core.errors import UnknownName
from ttabench.core.printable import printable
from ttabench.core.types import Json
from ttabench.terminal import screen
from ttabench.terminal.progress_bars import progress as progress
from ttabench.terminal.table import Bold, explained
from ttabench.terminal.table import Cell as Cell
from ttabench.terminal.table import Table as Table

Format = Literal["table", "markdown", "csv", "json"]
FORMATS: tuple[Format, ...] = ("table", "markdown", "csv", "json")
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that `printable` shows as escapes and JSON leaves as they are."""


def known_format(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise UnknownName("format", name, list(FORMATS))
    return next(known for known in FORMATS if known == name)


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
        screen.draw_all(tables, console(), narrow=sys.stdout.isatty())


def print_json(value: Json) -> None:
    """JSON on standard output, for machines: characters that a terminal would obey are written as escapes."""
    plain = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    text = json.dumps(value, indent=1, ensure_ascii=plain)
    if not text.isascii():
        text = _NOT_IN_JSON.sub(lambda unknown: f"\\u{ord(unknown[0]):04x}", text)
    sys.stdout.write(text + "\n")


def print_line(text: str) -> None:
    """A line on standard output for other programs, such as a path: exact, unless somebody watches."""
    _write(text + "\n")


def _write(text: str) -> None:
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def say(lines: Sequence[str]) -> None:
    """Sentences on standard output, a line each; on a terminal they wrap between words."""
    for line in lines:
        screen.tell(line, console(), "bold", wrap=sys.stdout.isatty())


def remark(text: str, style: str = "yellow") -> None:
    """One line on standard error."""
    screen.tell(text, console(stderr=True), style, wrap=sys.stderr.isatty())


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
