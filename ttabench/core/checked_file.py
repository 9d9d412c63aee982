"""The one boundary for bad files: whatever goes wrong while a user's file is read becomes one line that names it.

with reading(Path("test.jsonl")) as at:
    for at.line, text in enumerate(file, start=1):
        json.loads(text)               Unreadable: test.jsonl line 3 cannot be read: not valid JSON (Expecting ...)
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttabench.core import machine
from ttabench.core.amounts import size
from ttabench.core.errors import UserError
from ttabench.core.types import Json

TIMES = 100
"""How many times its own size a long Parquet file may unpack to."""
LONGEST = 256 * 2**20
"""Bytes; no record or header of this package comes near."""
ANY = 1 << 46
"""Bytes; whatever a disk holds, of files that are not read into memory at once."""
DEEPEST = 100
"""Lists and objects in each other, in JSON."""
MEND = "Check the path, mend the file, or get it anew."


class Unreadable(UserError):
    """A file that cannot be read."""


class Missing(Unreadable):
    """A file that is not there."""


@dataclass
class At:
    """The place in a file that is being read."""

    line: int = 0
    """From 1; 0 where a file has no lines, or none is known."""
    row: int | None = None
    """From 0, in the same way."""


@contextmanager
def reading(path: Path | str, hint: str = MEND, *, most: int | None = ANY) -> Iterator[At]:
    """Read a file: whatever is raised within becomes an `Unreadable` of one line, but for a `UserError`, which stays.

    Args:
        hint: how to mend it.
        most: bytes that it may have; None of what is no plain file, a folder say.
    """
    at = At()
    try:
        if most is not None:
            _refuse(Path(path), most)
        yield at
    except UserError:
        raise
    except Exception as error:
        if machine.is_limited() and machine.out_of_memory(error):
            raise  # of a limit that was asked for; the advice is the command's
        line = at.line or _line_of(error)
        where = f"{path}{f' line {line}' if line else ''}{'' if at.row is None else f' row {at.row}'}"
        kind = Missing if isinstance(error, FileNotFoundError | NotADirectoryError) else Unreadable
        raise kind(f"{where} cannot be read: {reason(error)}.", hint) from error


def reason(error: Exception) -> str:
    """What a library raised about a file, on one short line."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    if isinstance(error, UnicodeEncodeError):
        return "it holds half of a surrogate pair, which is no character"
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        return f"not valid JSON ({error.msg.removesuffix(' at')} at {line}column {error.colno})"
    if machine.out_of_memory(error):
        return "it does not fit into memory"
    text = str((isinstance(error, OSError) and error.strerror) or error)
    if _line_of(error):
        text = f"not valid YAML, {getattr(error, 'problem', '')}"
    if type(error).__name__ == "ValidationError":  # of pydantic, which is not imported for this
        fault = error.errors()[0]  # type: ignore[attr-defined]
        place = ".".join(map(str, fault["loc"]))
        text = ": ".join(filter(None, (place, fault["msg"].removeprefix("Value error, "))))
    lines = [line for line in text.splitlines() if line.strip()]
    text = " ".join(lines[0].split())[:160].rstrip(".") if lines else ""
    named = isinstance(error, KeyError | TypeError | AttributeError | IndexError) or not text
    return f"{type(error).__name__}: {text}".removesuffix(": ") if named else text


def _line_of(error: Exception) -> int:
    """The line that an error of yaml names, from 1; 0 of others."""
    mark = getattr(error, "problem_mark", None)
    return 0 if mark is None else mark.line + 1


def _refuse(path: Path, most: int) -> None:
    """See that a path is of a plain file of at most so many bytes."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    if status.st_size > most:
        raise ValueError(f"its {size(status.st_size)} are more than the {size(most)} that are read")


def read_text(path: Path, most: int = LONGEST, hint: str = MEND) -> str:
    """The text of a file in UTF-8."""
    with reading(path, hint, most=most):
        return path.read_text(encoding="utf-8")


def json_of(path: Path, most: int = LONGEST, hint: str = MEND) -> Json:
    """The value in a JSON file."""
    with reading(path, hint, most=most):
        return json_in(path.read_text(encoding="utf-8"))


def json_in(text: str) -> Json:
    """The value of a text in JSON; what is nested too deep for recursion is a ValueError."""
    value = json.loads(text)
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    if level:
        raise ValueError("it is nested too deep")
    return value


def object_of(path: Path, hint: str = MEND) -> dict[str, Any]:
    """The object in a JSON file."""
    value = json_of(path, hint=hint)
    if not isinstance(value, dict):
        raise Unreadable(f"{path} cannot be read: it holds a {type(value).__name__}, not an object.", hint)
    return value


@contextmanager
def parquet_file(path: Path, hint: str = MEND, *, most: int = ANY) -> Iterator[tuple[Any, At]]:
    """A `pyarrow.parquet.ParquetFile` of at most so many bytes, and the place that is being read."""
    import pyarrow.parquet as pq

    with reading(path, hint, most=most) as at, pq.ParquetFile(path) as file:
        refuse_doubles(file.schema_arrow.names)
        unpacked = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        if unpacked > LONGEST and unpacked > TIMES * path.stat().st_size:
            raise ValueError(f"it says that it unpacks to more than {TIMES} times its size")
        yield file, at


def refuse_doubles(names: Sequence[str]) -> None:
    """See that every column has a name of its own."""
    if double := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise ValueError(f"two columns are called {double!r:.60}")
