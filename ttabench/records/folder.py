"""How runs and profiles are made once: found if they are stored, else continued or begun, one process at a time.

    done = obtained(RunFolder, Path("runs") / run, work, force=False, notify=print)
    done.record, done.folder, done.how

What is found is kept line by line while the work goes on; the record is written last, and its presence means that it
is done. Two processes that want the same meet at the lock of its folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from ttabench.core.errors import UserError
from ttabench.core.files import made, remove, sweep
from ttabench.core.locks import LOCK_FILE, locked
from ttabench.records.journal import Journal

RecordT = TypeVar("RecordT")


class ResultFolder(ABC, Generic[RecordT]):
    """The folder of one result, `OUT/<id>`.

    Args:
        out: the folder of all results; made if missing.
        name: the result's id.

    Raises:
        UserError: the folder cannot be made or written.
    """

    record_file: ClassVar[str]
    partial_file: ClassVar[str]
    continuing: ClassVar[str]
    """Message where it goes on, with its {name} and the {count} of finished parts."""

    def __init__(self, out: Path, name: str) -> None:
        self.path = out / name
        self.journal = Journal(self.path / self.partial_file)
        made(self.path, out)

    @staticmethod
    @abstractmethod
    def load(folder: Path) -> RecordT:
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
        self.journal.discard()

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
            sweep(self.path)
            try:
                yield
            finally:
                self._leave_no_empty_folder()

    def _leave_no_empty_folder(self) -> None:
        if not self.is_stored(self.path) and self.is_empty():
            with suppress(OSError):
                remove(self.journal.path)
                remove(self.path / LOCK_FILE)
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
    """The result if it is stored, else what `work` makes of its folder.

    Args:
        kind: of result.
        where: its folder.
        work: is given the folder, what was found before taken up; stores the record and returns it.
        force: make it anew even if it is stored.
        notify: is told in one line what is worth knowing.

    Raises:
        UserError: the folder cannot be written, the stored record is damaged, or the work refuses.
    """
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
            Journal(where / kind.partial_file).discard()
            sweep(where)
