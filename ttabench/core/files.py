"""The one place where files are written: whole or not there, through no link, on the disk before they take their name.

write_atomically(Path("run.json"), text)
with replacing(Path("samples.parquet")) as scratch:
    write_table(table, scratch)                       a reader sees the old file or the new one, never half of it
with replacing_folder(Path("step-00000500")) as scratch:
    ...                                               the same of a folder
append(Path("partial.jsonl"), lines)                  whole lines, or none of them

What is being written has a name that ends in `.ttabench.part`; what a killed process left of it is removed by `sweep`,
which whoever holds the lock of a folder calls. `tests/core/test_writing.py` sees that no other module writes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp, mkstemp

from ttabench.core.errors import UserError

LOCK_FILE, LIST_FILE = ".lock", ".ttabench.json"
"""What stands beside our files: a lock that every writer of results takes, and their list in a folder of the user's."""
PART = ".ttabench.part"
"""How the names of files and folders end that are still being written: nobody else's do."""
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A link is refused, and so is a pipe that nobody reads, instead of waiting for a reader."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file beside `path`, which takes its place when the block ends; else it is removed."""
    number, name = mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=PART)
    os.close(number)
    with _taking(Path(name), path) as scratch:
        yield scratch


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new, empty folder beside `path`, which takes its name when the block ends; else it is removed."""
    with _taking(Path(mkdtemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=PART)), path) as scratch:
        yield scratch


@contextmanager
def _taking(scratch: Path, path: Path) -> Iterator[Path]:
    try:
        yield scratch
        for part in [scratch, *scratch.rglob("*")]:
            part.chmod(0o755 if part.is_dir() else 0o644)  # safetensors and mkstemp let only the owner read
            if not part.is_dir():
                with part.open("rb") as file:
                    os.fsync(file.fileno())  # so that a rename never outruns it
        moved(scratch, path)
    except BaseException:
        with suppress(OSError):
            remove(scratch)
        raise


def moved(path: Path, target: Path) -> None:
    """Give a file, or a folder, another name on the same disk, and wait until that is on it, where the system can."""
    path.replace(target)
    with suppress(OSError):
        number = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a text, or bytes, so that a reader sees the old file or the new one, never half of it."""
    try:
        with replacing(path) as scratch:
            scratch.write_bytes(_bytes(content) if isinstance(content, str) else content)
    except OSError as error:
        raise unwritable(path.parent, error) from None


def join(parts: Sequence[Path], path: Path) -> None:
    """Write what some files hold, one after the other, into a file of `replacing`."""
    with path.open("wb") as whole_file:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole_file, 2**20)


def append(path: Path, text: str) -> None:
    """Add whole lines to a file; they are on the disk afterwards, and what was in it stays as it was if they fail."""
    left = _bytes(text)
    try:
        with os.fdopen(os.open(path, _APPENDING, 0o644), "ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                while left:
                    left = left[os.write(file.fileno(), left) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(before)  # half a line would be joined by the next one
                raise
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path.parent, error) from None


def cut(path: Path, length: int) -> None:
    """Drop what a file holds after so many bytes."""
    os.truncate(path, length)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # names of files may be no text


def remove(path: Path) -> None:
    """Remove a file, or a folder with all below it, if it is there; of a link the link, never what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written in a folder; the caller holds its lock, so that nobody writes."""
    for left in folder.glob(f".*{PART}"):
        with suppress(OSError):
            remove(left)


def made(folder: Path, out: Path) -> None:
    """Make a folder, with all above it, and see that it can be written; the error names `out`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, name = mkstemp(dir=folder, prefix=".probe.", suffix=PART)
        os.close(number)
        Path(name).unlink()
    except OSError as error:
        raise unwritable(out, error) from None


def unwritable(folder: Path, error: OSError) -> UserError:
    """The user error for a folder in which nothing can be written."""
    return UserError(f"Cannot write in {folder}: {error.strerror or error}.", "Give another folder with --out.")


@contextmanager
def locked(folder: Path, busy: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a folder; if another process does, `busy` is called, and unless that raises we wait."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            busy()
            lock.acquire()
    except (OSError, NotImplementedError) as error:  # Timeout is an OSError, but not one that comes here
        fault = "it is a folder" if path.is_dir() else getattr(error, "strerror", None) or error
        raise UserError(f"The lock {path} cannot be taken: {fault}.", "Remove it, or give another --out.") from None
    try:
        yield
    finally:
        lock.release()


def held(folder: Path) -> bool:
    """Whether another process holds the lock of a folder now; nothing is made where there is none."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    if not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False
