"""File formats: csv, tsv, jsonl, json (SQuAD's nesting included), each also .gz, and parquet, to rows with their place.

for row in rows(Path("test.csv")):
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

from ttabench.core.declared import brief as brief
from ttabench.core.environment import memory_bytes
from ttabench.core.errors import LONGEST_TEXT, UserError
from ttabench.core.files import ANY, At, parquet_file, reading, reason, refuse_doubles


class RawRow(NamedTuple):
    """One row of a source: where it stands, and its cells by column."""

    place: str
    values: dict[str, object]
    number: int = 0
    """In its table, from 0 on, once that is looked at."""

    def cell(self, names: Iterable[str]) -> object:
        """The cell of the first of these columns that is there; None where none is."""
        return next((self.values[name] for name in names if name in self.values), None)

    def needed(self, names: Iterable[str], hint: str = "Give rows in a published layout.") -> object:
        """The same of a column that has to be there."""
        if self.values.keys().isdisjoint(names):
            has = brief(", ".join(map(str, self.values)), 160)
            raise UserError(f"{self.place} lacks the column {' or '.join(map(repr, names))}; it has {has}.", hint)
        return self.cell(names)

    def text(self, *names: str) -> str:
        """The same of a column of texts."""
        name = next((name for name in names if name in self.values), "")
        return text_of(name, self.needed(names))


Formats: TypeAlias = Mapping[str, Callable[[Path], Iterator[RawRow]]]
"""What reads the rows of a file, by the end of its name."""


@contextmanager
def parsing(place: str) -> Iterator[None]:
    """Whatever a row leads to that has another shape than it should is the error of that row."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {reason(error)}.", "Mend or remove that row.") from None


def text_of(field: str, value: object) -> str:
    """A cell that must be text."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {brief(value)}, no text")
    return value


def texts_in(value: object) -> Iterator[str]:
    """The texts in a JSON value."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)


def stem(path: Path) -> str:
    """File name without .gz and the suffix of its format, one of `READABLE`."""
    name = path.name.removesuffix(".gz")
    return next((name.removesuffix(suffix) for suffix in READABLE if name.endswith(suffix)), path.name)


def readable(path: Path) -> bool:
    """Whether the name ends as a format this module reads."""
    return stem(path) != path.name


def rows(path: Path, formats: Formats | None = None) -> Iterator[RawRow]:
    """The rows of one file, in order, in one of `READABLE` by default."""
    formats = READABLE if formats is None else formats
    name = path.name.removesuffix(".gz")
    if suffix := next(filter(name.endswith, formats), ""):
        return formats[suffix](path)
    raise UserError(f"Cannot tell the format of {path}.", f"Its name must end in {', '.join(formats)} (.gz too).")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Iterator[str], At]]:
    """The lines of a file, unpacked where its name ends in .gz, and the place that is being read."""
    most = (memory_bytes() or ANY) // 2  # a line stands in memory as bytes and as text
    with reading(path, most=most) as at, gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw:

        def lines() -> Iterator[str]:
            for at.line, line in enumerate(raw, start=1):  # the place is read where an error is told
                yield line.decode("utf-8-sig" if at.line == 1 else "utf-8")

        yield lines(), at


def _table(path: Path, **dialect: Any) -> Iterator[RawRow]:
    csv.field_size_limit(LONGEST_TEXT)  # global to the process; the default of 128 KiB is shorter than a long article
    with opened(path) as (lines, at):
        cells_of_rows = filter(None, csv.reader(lines, strict=True, **dialect))
        header = next(cells_of_rows, [])
        refuse_doubles(header)
        for cells in cells_of_rows:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells where the header has {len(header)}")
            yield RawRow(f"{path} line {at.line}", dict(zip(header, cells, strict=True)))


def _value(text: str) -> Any:
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half of a surrogate pair is no character
    return value


def _as_object(place: str, value: object) -> RawRow:
    if not isinstance(value, dict):
        raise UserError(f"{place}: a JSON object was expected, not {type(value).__name__}.", "Mend or remove that row.")
    return RawRow(place, value)


def json_lines(path: Path) -> Iterator[RawRow]:
    """The rows of a file of JSON objects, one a line, whatever its name ends in; see `rows`."""
    with opened(path) as (lines, at):
        for line in lines:
            if line.strip():
                yield _as_object(f"{path} line {at.line}", _value(line))


def _json(path: Path) -> Iterator[RawRow]:
    with opened(path) as (lines, at):
        text = "".join(lines)
        at.line = 0
        value = _value(text)
        if isinstance(value, dict):
            if not value.keys() & {"data", "golds"}:
                raise UserError(f"{path}: neither a list of rows nor SQuAD's {{'data': [...]}}.", "Give another file.")
            value = list(_squad(value["data"])) if "data" in value else value["golds"]  # LaMP's right answers
        yield from (_as_object(f"{path} row {number}", row) for number, row in enumerate(value))


def _squad(articles: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """SQuAD v1.1's articles > paragraphs > questions, flattened to the columns that the hub has."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                values = {key: question.get(key) for key in ("id", "question", "answers")}
                yield {"title": article.get("title"), "context": paragraph["context"], **values}


def _parquet(path: Path) -> Iterator[RawRow]:
    with parquet_file(path) as (file, at):
        at.row = 0
        for batch in file.iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                yield RawRow(f"{path} row {at.row}", values)
                at.row += 1


READABLE: Formats = {
    ".jsonl": json_lines,
    ".json": _json,
    ".csv": _table,
    ".tsv": partial(_table, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": _parquet,
}
"""Formats by suffix; where a folder holds one name in several, the first of them is read."""


def reasons(dropped: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
