"""What every format of rows is read with: a row with its place, the open file, texts made of characters."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import Unreadable, plain, refuse_expanding
from ttabench.core.errors import UserError

LONGEST = 1 << 46
"""Bytes of a file of data: whatever a disk holds."""


class RawRow(NamedTuple):
    """One row of a source: where it stands, and its cells by column."""

    place: str
    values: dict[str, object]


def malformed(place: str, why: str) -> UserError:
    """The error for one bad row."""
    return UserError(f"{place}: {why}.", "Mend or remove that row.")


def proper(place: str, field: str, text: str) -> str:
    """A text made of characters, and not of too many.

    Raises:
        UserError: it holds half of a surrogate pair or a NUL, or is longer than a text may be.
    """
    if len(text) > LONGEST_TEXT:
        raise malformed(place, f"{field} has {len(text):,} characters, more than the {LONGEST_TEXT:,} of one text")
    if "\0" in text:
        raise malformed(place, f"{field} holds a NUL, which is no character of a text")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise malformed(place, f"{field} holds half of a surrogate pair, which is no character") from None
    return text


@contextmanager
def opened(path: Path, newline: str = "\n") -> Iterator[TextIO]:
    """The text of a file, unpacked where its name ends in .gz.

    Raises:
        UserError: it cannot be read, is not UTF-8, or is a broken archive.
    """
    try:
        plain(path, LONGEST)
        packed = path.suffix == ".gz"
        raw: BinaryIO = BufferedReader(_Unpacked(path)) if packed else path.open("rb")
        with TextIOWrapper(raw, encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        raise UserError(f"{path} line {_undecodable_line(path)}: not UTF-8 text.", "Save the file as UTF-8.") from None
    except Unreadable as error:
        raise UserError(f"Cannot read {path}: {error}.", "Give a file.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{path} is not a whole gzip file.", "Download it again, or unpack it first.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror or error}).", "Check the path and its rights.") from None


class _Unpacked(RawIOBase):
    """The unpacked bytes of a gzip file, refused where they are more than such a file can hold."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self._file = gzip.open(path)  # noqa: SIM115  # closed with this

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._count += count
        refuse_expanding(self._path, self._count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _undecodable_line(path: Path) -> int:
    with suppress(OSError, EOFError, zlib.error), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1  # cut in the middle of a character that a longer read would have completed


def whole_lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    """The lines of a table, whose last one must end: nothing else tells a cut last cell from a short one.

    Raises:
        UserError: after the last line, where it has no line break.
    """
    line, number = "\n", 0
    for line in file:
        number += 1
        yield line
    if not line.endswith(("\n", "\r")):
        fault = f"{path} line {number} is the last and does not end: its last cell may be cut."
        raise UserError(fault, "Get the file anew; if it is whole, add a line break at its end.")
