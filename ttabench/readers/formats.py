"""File formats: csv, tsv, jsonl, json (SQuAD's nesting included), each also .gz, and parquet, to rows with their place.

for row in read_rows(Path("test.csv")):
    row.place   # "test.csv line 12": what an error message points at
    row.values  # {"text": "...", "question": "...", "answers": "..."}
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
    reading_file,
    refuse_duplicate_names,
)


class RawRow(NamedTuple):
    """One row of a source: where it stands, and its cells by column."""

    location: str
    values: dict[str, object]
    number: int = 0
    """In its table, from 0 on, once that is looked at."""

    def cell(self, names: Iterable[str]) -> object:
        """The cell of the first of these columns that is there; None where none is."""
        return next((self.values[name] for name in names if name in self.values), None)

    def require(
        self, names: Iterable[str], hint: str = "Give rows in a published layout."
    ) -> object:
        """The same of a column that has to be there."""
        if self.values.keys().isdisjoint(names):
            has = short_repr(", ".join(map(str, self.values)), 160)
            raise UserError(
                f"{self.location} lacks the column {' or '.join(map(repr, names))}; it has {has}.",
                hint,
            )
        return self.cell(names)

    def text(self, *names: str) -> str:
        """The same of a column of texts."""
        name = next((name for name in names if name in self.values), "")
        return require_text(name, self.require(names))


Formats: TypeAlias = Mapping[str, Callable[[Path], Iterator[RawRow]]]
"""What reads the rows of a file, by the end of its name."""


@contextmanager
def report_row_errors(location: str) -> Iterator[None]:
    """Whatever a row leads to that has another shape than it should is the error of that row."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{location}: {error_reason(error)}.", "Mend or remove that row.") from None


def require_text(field: str, value: object) -> str:
    """A cell that must be text."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {short_repr(value)}, no text")
    return value


def iter_texts(value: object) -> Iterator[str]:
    """The texts in a JSON value."""
    if isinstance(value, str):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from iter_texts(inner)


def base_name(path: Path) -> str:
    """File name without .gz and the suffix of its format, one of `DEFAULT_FORMATS`."""
    name = path.name.removesuffix(".gz")
    return next(
        (name.removesuffix(suffix) for suffix in DEFAULT_FORMATS if name.endswith(suffix)),
        path.name,
    )


def is_readable(path: Path) -> bool:
    """Whether the name ends as a format this module reads."""
    return base_name(path) != path.name


def read_rows(path: Path, formats: Formats | None = None) -> Iterator[RawRow]:
    """The rows of one file, in order, in one of `DEFAULT_FORMATS` by default."""
    formats = DEFAULT_FORMATS if formats is None else formats
    name = path.name.removesuffix(".gz")
    if suffix := next(filter(name.endswith, formats), ""):
        return formats[suffix](path)
    raise UserError(
        f"Cannot tell the format of {path}.",
        f"Its name must end in {', '.join(formats)} (.gz too).",
    )


@contextmanager
def open_lines(path: Path) -> Iterator[tuple[Iterator[str], FilePosition]]:
    """The lines of a file, unpacked where its name ends in .gz, and the place that is being read."""
    most = (
        memory_bytes() or MAX_STREAMED_BYTES
    ) // 2  # a line stands in memory as bytes and as text
    with (
        reading_file(path, max_bytes=most) as at,
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw,
    ):

        def lines() -> Iterator[str]:
            for at.line, line in enumerate(
                raw, start=1
            ):  # the place is read where an error is told
                yield line.decode("utf-8-sig" if at.line == 1 else "utf-8")

        yield lines(), at


def _read_table(path: Path, **dialect: Any) -> Iterator[RawRow]:
    csv.field_size_limit(
        MAX_TEXT_CHARS
    )  # global to the process; the default of 128 KiB is shorter than a long article
    with open_lines(path) as (lines, at):
        cells_of_rows = filter(None, csv.reader(lines, strict=True, **dialect))
        header = next(cells_of_rows, [])
        refuse_duplicate_names(header)
        for cells in cells_of_rows:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells where the header has {len(header)}")
            yield RawRow(f"{path} line {at.line}", dict(zip(header, cells, strict=True)))


def _parse_json(text: str) -> Any:
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode(
            "utf-8"
        )  # half of a surrogate pair is no character
    return value


def _row_of_object(location: str, value: object) -> RawRow:
    if not isinstance(value, dict):
        raise UserError(
            f"{location}: a JSON object was expected, not {type(value).__name__}.",
            "Mend or remove that row.",
        )
    return RawRow(location, value)


def read_json_lines(path: Path) -> Iterator[RawRow]:
    """The rows of a file of JSON objects, one a line, whatever its name ends in; see `rows`."""
    with open_lines(path) as (lines, at):
        for line in lines:
            if line.strip():
                yield _row_of_object(f"{path} line {at.line}", _parse_json(line))


def _read_json(path: Path) -> Iterator[RawRow]:
    with open_lines(path) as (lines, at):
        text = "".join(lines)
        at.line = 0
        value = _parse_json(text)
        if isinstance(value, dict):
            if not value.keys() & {"data", "golds"}:
                raise UserError(
                    f"{path}: neither a list of rows nor SQuAD's {{'data': [...]}}.",
                    "Give another file.",
                )
            value = (
                list(_flatten_squad(value["data"])) if "data" in value else value["golds"]
            )  # LaMP's right answers
        yield from (_row_of_object(f"{path} row {number}", row) for number, row in enumerate(value))


def _flatten_squad(articles: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """SQuAD v1.1's articles > paragraphs > questions, flattened to the columns that the hub has."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                values = {key: question.get(key) for key in ("id", "question", "answers")}
                yield {"title": article.get("title"), "context": paragraph["context"], **values}


def _read_parquet(path: Path) -> Iterator[RawRow]:
    with open_parquet(path) as (file, at):
        at.row = 0
        for batch in file.iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                yield RawRow(f"{path} row {at.row}", values)
                at.row += 1


DEFAULT_FORMATS: Formats = {
    ".jsonl": read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": partial(_read_table, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": _read_parquet,
}
"""Formats by suffix; where a folder holds one name in several, the first of them is read."""


def format_reasons(dropped: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
