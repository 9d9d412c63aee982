"""File formats: csv, tsv, jsonl, json (also SQuAD's nesting, and rows by id), each also .gz, and
parquet; read as rows with a location.

for row in read_rows(Path("test.csv")):
    row.location   # "test.csv line 12", for error messages
    row.values     # {"text": "...", "question": "...", "answers": "..."}
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.declared import short_repr as short_repr
from ttabench.core.environment import memory_bytes
from ttabench.core.errors import MAX_TEXT_CHARS, UserError
from ttabench.core.files import (
    MAX_STREAMED_BYTES,
    FilePosition,
    error_reason,
    open_parquet,
    parse_json,
    read_text,
    reading_file,
    refuse_duplicate_names,
)


class RawRow(NamedTuple):
    """One row of a source: its location, and its cells by column."""

    location: str
    values: dict[str, object]
    number: int = 0
    """Row number in its table, from 0, once the table is parsed."""

    def cell(self, names: Iterable[str]) -> object:
        """Return the cell of the first of these columns that exists; None without any."""
        return next((self.values[name] for name in names if name in self.values), None)

    def require(
        self, names: Iterable[str], hint: str = "Use rows in a published layout."
    ) -> object:
        """Return the same, or raise a UserError if no column exists."""
        if self.values.keys().isdisjoint(names):
            has = short_repr(", ".join(map(str, self.values)), 160)
            raise UserError(
                f"{self.location} lacks the column {' or '.join(map(repr, names))}; it has {has}.",
                hint,
            )
        return self.cell(names)

    def text(self, *names: str) -> str:
        """Return the cell of a required text column."""
        name = next((name for name in names if name in self.values), "")
        return require_text(name, self.require(names))


Formats: TypeAlias = Mapping[str, Callable[[Path], Iterator[RawRow]]]
"""Row reader of a file, by the suffix of its name."""


@contextmanager
def report_row_errors(location: str) -> Iterator[None]:
    """Report any error in the block as a UserError with the location of the row."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{location}: {error_reason(error)}.", "Fix or remove that row.") from None


def require_text(field: str, value: object) -> str:
    """Return a cell, which must be text."""
    if not isinstance(value, str):
        raise ValueError(f"{field} must be text, got {short_repr(value)}")
    return value


def iter_texts(value: object) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from iter_texts(inner)


def base_name(path: Path) -> str:
    """Return a file name without .gz and the suffix of its format, one of `DEFAULT_FORMATS`."""
    name = path.name.removesuffix(".gz")
    return next(
        (name.removesuffix(suffix) for suffix in DEFAULT_FORMATS if name.endswith(suffix)),
        path.name,
    )


def is_readable(path: Path) -> bool:
    """Return True if the name ends with a suffix that this module reads."""
    return base_name(path) != path.name


def read_rows(path: Path, formats: Formats | None = None) -> Iterator[RawRow]:
    """Read the rows of one file, in order, in one of `DEFAULT_FORMATS` by default."""
    formats = DEFAULT_FORMATS if formats is None else formats
    name = path.name.removesuffix(".gz")
    if suffix := next(filter(name.endswith, formats), ""):
        return formats[suffix](path)
    raise UserError(
        f"The format of {path} is unknown.",
        f"Use a name that ends in {', '.join(formats)} (.gz too).",
    )


def read_document(path: Path) -> str:
    """Read a text file. A chat in JSON becomes a text with one paragraph per message.

    A chat is a list of messages {"role": ..., "content": ...}, an object with such a list as
    `messages` and perhaps a `system` prompt, or a message or object per line (.jsonl). Contents are
    texts, null, or lists of parts with a `text`; parts of other types are left out. Tool calls stay
    JSON. Any other JSON is returned as it is in the file.
    """
    text = read_text(path)
    if not is_readable(path):
        return text
    try:
        values = [_parse_json(text)] if path.suffix == ".json" else _json_lines(text)
        messages = [message for value in values for message in _messages_of(value)]
        return "\n\n".join(map(_message_text, messages)) or text
    except (ValueError, KeyError, TypeError, AttributeError):
        return text


def _json_lines(text: str) -> list[Any]:
    return [_parse_json(line) for line in text.split("\n") if line.strip()]


def _messages_of(value: Any) -> list[Any]:
    if isinstance(value, dict) and "role" not in value:
        system = [{"role": "system", "content": value["system"]}] if value.get("system") else []
        value = [*system, *value["messages"]]
    return value if isinstance(value, list) else [value]


def _message_text(message: Any) -> str:
    """Format a message as one paragraph, `role: content`."""
    content = message["content"]
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type", "text") == "text")
    content = "" if content is None else require_text("content", content)
    if calls := message.get("tool_calls"):
        content += f"\n{json.dumps(calls, ensure_ascii=False)}"
    lines = [line for line in content.splitlines() if line.strip()]
    return f"{require_text('role', message['role'])}: " + "\n".join(lines)


@contextmanager
def open_lines(path: Path) -> Iterator[tuple[Iterator[str], FilePosition]]:
    """Open the lines of a file, unpacked if its name ends in .gz, with the position being read."""
    # a line is in memory twice: as bytes and as text
    max_bytes_read = (memory_bytes() or MAX_STREAMED_BYTES) // 2
    with (
        reading_file(path, max_bytes=max_bytes_read) as position,
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw,
    ):

        def lines() -> Iterator[str]:
            for position.line, line in enumerate(raw, start=1):  # errors report this line
                yield line.decode("utf-8-sig" if position.line == 1 else "utf-8")

        yield lines(), position


def _read_table(path: Path, **dialect: Any) -> Iterator[RawRow]:
    # global to the process; the default of 128 KiB is shorter than a long article
    csv.field_size_limit(MAX_TEXT_CHARS)
    with open_lines(path) as (lines, position):
        cells_of_rows = filter(None, csv.reader(lines, strict=True, **dialect))
        header = next(cells_of_rows, [])
        refuse_duplicate_names(header)
        for cells in cells_of_rows:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells where the header has {len(header)}")
            yield RawRow(f"{path} line {position.line}", dict(zip(header, cells, strict=True)))


def _parse_json(text: str) -> Any:
    value = parse_json(text)
    if "\\u" in text:
        # raises for half of a surrogate pair
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _row_of_object(location: str, value: object) -> RawRow:
    if not isinstance(value, dict):
        raise UserError(
            f"{location}: a row must be a JSON object, not {type(value).__name__}.",
            "Fix or remove that row.",
        )
    return RawRow(location, value)


def read_json_lines(path: Path) -> Iterator[RawRow]:
    """Read a file of JSON objects, one per line, whatever its suffix."""
    with open_lines(path) as (lines, position):
        for line in lines:
            if line.strip():
                yield _row_of_object(f"{path} line {position.line}", _parse_json(line))


def _read_json(path: Path) -> Iterator[RawRow]:
    with open_lines(path) as (lines, position):
        text = "".join(lines)
        position.line = 0
        value = _parse_json(text)
        if isinstance(value, dict):
            if "data" in value:
                value = list(_flatten_squad(value["data"]))
            elif "golds" in value:  # LaMP's right answers
                value = value["golds"]
            elif value and all(isinstance(row, dict) for row in value.values()):  # rows by id
                value = [{"id": name, **row} for name, row in value.items()]
            else:
                raise UserError(
                    f"{path} has neither rows, rows by id, nor SQuAD's {{'data': [...]}}.",
                    "Use another file.",
                )
        yield from (_row_of_object(f"{path} row {number}", row) for number, row in enumerate(value))


def _flatten_squad(articles: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """Flatten SQuAD v1.1's articles > paragraphs > questions to the columns on the hub."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                values = {key: question.get(key) for key in ("id", "question", "answers")}
                yield {"title": article.get("title"), "context": paragraph["context"], **values}


def _read_parquet(path: Path) -> Iterator[RawRow]:
    with open_parquet(path) as (file, position):
        position.row = 0
        for batch in file.iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                yield RawRow(f"{path} row {position.row}", values)
                position.row += 1


DEFAULT_FORMATS: Formats = {
    ".jsonl": read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": partial(_read_table, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": _read_parquet,
}
"""Formats by suffix; if a folder has one name in several, the first of them is read."""


def format_reasons(dropped: Mapping[str, int]) -> str:
    """Format counts by reason."""
    return ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
