"""How runs and profiles are made once: found if they are stored, else continued or begun, one process at a time."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from ttabench.core import files
from ttabench.core.checked_file import Missing, reading
from ttabench.core.errors import UserError
from ttabench.core.files import LOCK_FILE, locked
from ttabench.core.types import Json

LONGEST = 1 << 35
"""Bytes of a journal that are read into memory."""
T = TypeVar("T")
RecordT = TypeVar("RecordT")


def seconds(line: Mapping[str, Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) that a line says its process took since the one before; (0, 0) where it says none."""
    wall, cpu = line.get("seconds") or (0.0, 0.0)
    return float(wall), float(cpu)


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; an empty one where it is none."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def typed(cls: type[T], value: object) -> T:
    """A dataclass from JSON values that has each of its fields, with values of their types, and no others."""
    names = cls.__dataclass_fields__.keys()  # type: ignore[attr-defined]  # a dataclass, by the line above
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"not the fields of a {cls.__name__}")
    # by way of JSON, strict mode takes a mapping for a dataclass and still refuses a text for a number
    checked: T = _adapter(cls).validate_json(json.dumps(value), strict=True)  # type: ignore[arg-type]
    return checked


@lru_cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


class ResultFolder(ABC, Generic[RecordT]):
    """The folder of one result, `OUT/<id>`, and its journal: findings of work that goes on, one JSON object a line."""

    record_file: ClassVar[str]
    partial_file: ClassVar[str]
    continuing: ClassVar[str]
    """Message where it goes on, with its {name} and the {count} of finished parts."""

    def __init__(self, out: Path, name: str) -> None:
        self.path, self.journal, self._process = out / name, out / name / self.partial_file, os.getpid()
        files.made(self.path, out)

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Lines of the journal that have a kind and a value, and how many others there are: damaged or cut.

        A last line that was cut in the middle of writing is removed, so that what is appended stands apart.
        """
        try:
            with reading(self.journal, "Remove it, or give another --out.", most=LONGEST):
                if self.journal.is_symlink():
                    raise ValueError("it is a link to another file")
                content = self.journal.read_bytes()
                whole = content[: content.rfind(b"\n") + 1]
                if len(whole) < len(content):
                    files.cut(self.journal, len(whole))
        except Missing:
            return [], 0
        parsed = [_parsed(line) for line in whole.splitlines()]
        kept = [line for line in parsed if {"kind", "value"} <= line.keys()]
        return kept, len(parsed) - len(kept) + (len(whole) < len(content))

    def write(self, lines: Iterable[Mapping[str, Json]]) -> None:
        """Keep findings, at once: they are on the disk when it returns."""
        if os.getpid() != self._process:
            os._exit(0)  # a method forked itself: that copy is not to write the same run
        files.append(self.journal, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    @staticmethod
    @abstractmethod
    def load(folder: Path, /) -> RecordT:
        """The record in a folder."""

    @classmethod
    def is_stored(cls, folder: Path) -> bool:
        """Whether a folder holds a finished record."""
        return (folder / cls.record_file).exists()

    @abstractmethod
    def busy(self) -> str:
        """The line shown while another process holds the folder and we wait for it."""

    @abstractmethod
    def resume(self) -> int:
        """Read back the partial results; returns how many there are."""

    def begin(self) -> None:  # most have nothing to do
        """The lock is held from here on."""

    def discard(self) -> None:
        """Drop the partial results."""
        try:
            self.journal.unlink(missing_ok=True)
        except OSError as error:
            fault = f"{self.journal} cannot be removed: {error.strerror or error}."
            raise UserError(fault, "Remove it, or give another --out.") from None

    def is_empty(self) -> bool:
        """Whether nothing was found that is worth keeping."""
        return not self.journal.exists()

    def stored(self) -> RecordT | None:
        """The finished record, if there is one."""
        return self.load(self.path) if self.is_stored(self.path) else None

    @contextmanager
    def locked(self, notify: Callable[[str], None]) -> Iterator[None]:
        """Hold the folder; where nothing comes of it, it is removed."""
        with locked(self.path, lambda: notify(self.busy())):
            self.begin()
            files.sweep(self.path)
            try:
                yield
            finally:
                mine = os.getpid() == self._process  # what a method forked leaves the folder to us
                if mine and not self.is_stored(self.path) and self.is_empty():
                    with suppress(OSError):
                        files.remove(self.journal)
                        files.remove(self.path / LOCK_FILE)
                        self.path.rmdir()


FolderT = TypeVar("FolderT", bound=ResultFolder[Any])


@dataclass(frozen=True, kw_only=True)
class Obtained(Generic[RecordT]):
    """A result that is stored."""

    record: RecordT
    folder: Path
    how: Literal["stored", "continued", "new"]
    """It was stored already; it was continued after a stop; it was made from the start."""


def obtained(
    kind: type[FolderT], where: Path, work: Callable[[FolderT], RecordT], *, force: bool, notify: Callable[[str], None]
) -> Obtained[RecordT]:
    """The result if it is stored, else what `work` makes of its folder."""
    if not force and kind.is_stored(where):  # it is whole: neither a lock nor a right to write is needed
        _tidy(kind, where)
        return Obtained(record=kind.load(where), folder=where, how="stored")
    folder = kind(where.parent, where.name)
    with folder.locked(notify):
        if force:
            folder.discard()
        elif stored := folder.stored():
            return Obtained(record=stored, folder=where, how="stored")
        resumed = folder.resume()
        if resumed:
            notify(kind.continuing.format(name=where.name, count=resumed))
        record = work(folder)
    return Obtained(record=record, folder=where, how="continued" if resumed else "new")


def _tidy(kind: type[ResultFolder[Any]], where: Path) -> None:
    """Drop partial results beside a finished record, where a kill left them and no process works here."""

    def busy() -> None:
        raise UserError("Another process holds the folder.")

    if (where / kind.partial_file).exists():
        with suppress(UserError, OSError), locked(where, busy):
            (where / kind.partial_file).unlink()
            files.sweep(where)
