"""One process at a time in a folder: a file lock that every writer of results takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ttabench.core.errors import UserError

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path, busy: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a folder; the file `.lock` in it stays behind.

    Args:
        folder: exists and can be written.
        busy: called once if another process holds the lock; unless it raises, we then wait.
    """
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
