"""File formats: csv, tsv, jsonl, json (SQuAD's nesting included), each also .gz, and parquet, to rows with their place.

    for row in rows(Path("test.csv")):
        row.place   # "test.csv line 12": what an error message points at
        row.values  # {"text": "...", "question": "...", "answers": "..."}

Files are read as UTF-8 and never executed or unpickled. Whatever is wrong with a file is a `UserError` of one line.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import SMALL, Unreadable, refuse_expanding
from ttabench.core.errors import UserError
from ttabench.core.parquet import longest_column, parquet_file
from ttabench.readers.raw import LONGEST, opened, whole_lines
from ttabench.readers.raw import RawRow as RawRow
from ttabench.readers.raw import malformed as malformed

MAX_CELL = LONGEST_TEXT
"""Characters in one csv cell; beyond it a quote was most likely left open."""
MOST_REPEATED = 1000
"""How many times the size of a Parquet file its rows may be: it holds a text once that stands in many rows."""


def stem(path: Path) -> str:
    """File name without its format suffix and .gz."""
    name = path.name.removesuffix(".gz")
    return next((name[: -len(suffix)] for suffix in READABLE if name.endswith(suffix)), path.name)


def readable(path: Path) -> bool:
    """Whether the name ends as a format this module reads."""
    return stem(path) != path.name


def rows(path: Path) -> Iterator[RawRow]:
    """The rows of one file, in order.

    Raises:
        UserError: unreadable file, unknown suffix, bytes that are not UTF-8, a broken archive, or a malformed row.
    """
    name = path.name.removesuffix(".gz")
    for suffix, parse in READABLE.items():
        if name.endswith(suffix):
            return parse(path)
    raise UserError(f"Cannot tell the format of {path}.", f"Its name must end in {', '.join(READABLE)} (.gz too).")


def _header(path: Path, cells: list[str]) -> list[str]:
    double = next((name for name, count in Counter(cells).items() if name and count > 1), None)
    if double is not None:
        raise malformed(f"{path} line 1", f"two columns are called {double!r}")
    return cells


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; one that says a key twice has two values for it, and which is meant cannot be told."""
    pairs_by_key = dict(pairs)
    if len(pairs_by_key) != len(pairs):
        double = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _TwoValues(f"the key {double!r:.60} stands twice in one object")
    return pairs_by_key


class _TwoValues(ValueError):
    """A key that stands twice."""


def _csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(MAX_CELL)  # global to the process; the default of 128 KiB is shorter than a long article
    with opened(path, newline="") as file:
        reader = csv.reader(whole_lines(path, file), strict=True)
        start = 1
        header: list[str] | None = None
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise malformed(f"{path} line {start}", f"not valid csv ({error})") from None
            if cells is None:
                return
            if header is None:
                header = _header(path, cells)
            elif cells:
                if len(cells) != len(header):
                    raise malformed(f"{path} line {start}", f"{len(cells)} cells where the header has {len(header)}")
                yield RawRow(f"{path} line {start}", dict(zip(header, cells, strict=True)))
            start = reader.line_num + 1


def _tsv(path: Path) -> Iterator[RawRow]:
    """GLUE's tables: a header, tabs between cells, quotes that mean nothing."""
    with opened(path) as file:
        header: list[str] | None = None
        for number, line in enumerate(whole_lines(path, file), start=1):
            cells = line.rstrip("\r\n").split("\t")
            if header is None:
                header = _header(path, cells)
            elif cells != [""]:
                if len(cells) != len(header):
                    why = f"{len(cells)} cells where the header has {len(header)}"
                    raise malformed(f"{path} line {number}", why)
                yield RawRow(f"{path} line {number}", dict(zip(header, cells, strict=True)))


def json_lines(path: Path) -> Iterator[RawRow]:
    """The rows of a file of JSON objects, one a line, whatever its name ends in; see `rows`."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path} line {number}"
            try:
                value = json.loads(line, object_pairs_hook=_object)
            except json.JSONDecodeError as error:
                raise malformed(place, f"not valid JSON ({_why(error)} at column {error.colno})") from None
            except _TwoValues as error:
                raise malformed(place, str(error)) from None
            except (ValueError, RecursionError):
                raise malformed(place, "JSON nested too deep, or a number too long") from None
            if not isinstance(value, dict):
                raise malformed(place, f"a JSON object was expected, not {type(value).__name__}")
            yield RawRow(place, value)


def _why(error: json.JSONDecodeError) -> str:
    """The complaint of Python's parser, some of which end in "at", for the place behind it."""
    return error.msg.removesuffix(" at")


def _json(path: Path) -> Iterator[RawRow]:
    with opened(path) as file:
        text = file.read()
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}: not valid JSON ({_why(error)}).", "Download it again.") from None
    except _TwoValues as error:
        raise malformed(str(path), str(error)) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: JSON nested too deep, or a number too long.", "Download it again.") from None
    if isinstance(value, list):
        for number, row in enumerate(value):
            if not isinstance(row, dict):
                raise malformed(f"{path} row {number}", f"a JSON object was expected, not {type(row).__name__}")
            yield RawRow(f"{path} row {number}", row)
    elif isinstance(value, dict) and "data" in value:
        yield from _squad(str(path), value)
    elif isinstance(value, dict) and "golds" in value:  # LaMP's right answers
        yield from (RawRow(place, row) for place, row in _members(value, "golds", str(path)))
    else:
        raise UserError(f"{path}: neither a list of rows nor SQuAD's {{'data': [...]}}.", "Give another file.")


def _squad(file: str, value: dict[str, object]) -> Iterator[RawRow]:
    """SQuAD v1.1's articles > paragraphs > questions, flattened to the columns that the hub has."""
    for article_at, article in _members(value, "data", file):
        for paragraph_at, paragraph in _members(article, "paragraphs", article_at):
            for place, question in _members(paragraph, "qas", paragraph_at):
                for key, holder, where in (("context", paragraph, paragraph_at), ("question", question, place)):
                    if not isinstance(holder.get(key), str):
                        raise malformed(where, f"{key!r} is missing or no text")
                values = {key: question.get(key) for key in ("id", "question", "answers")}
                yield RawRow(place, {"title": article.get("title"), "context": paragraph["context"], **values})


def _members(holder: dict[str, object], key: str, place: str) -> Iterator[tuple[str, dict[str, object]]]:
    members = holder.get(key)
    if not isinstance(members, list):
        raise malformed(place, f"{key!r} is missing or no list")
    dot = " " if key in ("data", "golds") else "."
    for number, member in enumerate(members):
        where = f"{place}{dot}{key}[{number}]"
        if not isinstance(member, dict):
            raise malformed(where, f"a JSON object was expected, not {type(member).__name__}")
        yield where, member


def _parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow as arrow

    number = unpacked = 0
    try:
        with parquet_file(path, LONGEST) as file:
            together = min(1024, max(1, SMALL // max(1, longest_column(file))))
            for batch in file.iter_batches(batch_size=together):
                unpacked += batch.nbytes
                refuse_expanding(path, unpacked, MOST_REPEATED)
                for values in batch.to_pylist():
                    yield RawRow(f"{path} row {number}", values)
                    number += 1
    except (arrow.ArrowException, OSError, UnicodeDecodeError, Unreadable) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"Cannot read {path} as parquet after row {number} ({why}).", "Download it again.") from None


READABLE: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
"""Formats by suffix; where a folder holds one name in several, the first of them is read."""
