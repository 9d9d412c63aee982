"""Files that are whole or not there: what is written takes its name only once it is on the disk.

write_atomically(Path("run.json"), text)
with replacing(Path("samples.parquet")) as scratch:
    write_table(table, scratch)                       a reader sees the old file or the new one, never half of it
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp

from ttabench.core.errors import UserError

PART = ".part"
"""How the names of files end that are still being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file beside `path`, which takes its place when the block ends, readable by all; else it is removed.

    Its name is not known before, so that two processes never write the same one and no link is followed.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    number, name = mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    os.close(number)
    scratch = Path(name)
    try:
        yield scratch
        synced(scratch)
        scratch.chmod(0o644)  # safetensors and mkstemp let only the owner read
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def synced(path: Path) -> None:
    """Wait until the file is on the disk, so that a rename never outruns it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Write a text so that a reader sees the old file or the new one, never half of it.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        with replacing(path) as scratch:
            scratch.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files may be no text
    except OSError as error:
        raise unwritable(path.parent, error) from None


def append(path: Path, text: str) -> None:
    """Add whole lines to a file; they are on the disk afterwards.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path.parent, error) from None


def made(folder: Path, out: Path) -> None:
    """Make a folder in `out`, with all above it, and see that it can be written.

    Raises:
        UserError: it cannot be made or written.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(out, error) from None


def unwritable(folder: Path, error: OSError) -> UserError:
    """The user error for a folder in which nothing can be written."""
    return UserError(f"Cannot write in {folder}: {error.strerror or error}.", "Give another folder with --out.")
