"""Atomic writing of files, and reading with one-line errors that name the file and line.

write_atomically(Path("run.json"), text)
with replace_atomically(Path("samples.parquet")) as scratch:
    write_table(table, scratch)     # others see the old or the new file, never a part of it
append_text(Path("partial.jsonl"), lines)     # a crash may leave an incomplete last line
with reading_file(Path("test.jsonl")) as at:
    for at.line, text in enumerate(file, start=1):
        json.loads(text)            # UnreadableFile: test.jsonl line 3 cannot be read: not ...

Writing never follows symbolic links. A file is written as a partial file, whose name ends in
`.ttabench.part`. It is synced to disk and then renamed. `remove_partial_files` removes partial
files of a killed process; its caller must hold the lock of the folder. No other module writes files
(`tests/core/test_writing.py`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp, mkstemp
from typing import Any

from ttabench.core import environment
from ttabench.core.amounts import format_bytes
from ttabench.core.errors import UserError
from ttabench.core.types import Json

MAX_UNPACK_RATIO = 100
"""Largest ratio of unpacked size to file size, for Parquet files above `MAX_RECORD_BYTES`."""
MAX_RECORD_BYTES = 256 * 2**20
"""Largest record or header in bytes; those of this package are far smaller."""
MAX_STREAMED_BYTES = 1 << 46
"""Largest file in bytes that is streamed instead of read into memory; in practice no limit."""
MAX_JSON_DEPTH = 100
"""Largest nesting depth of lists and objects in JSON."""
MAX_REASON_CHARS = 160
"""Longest error message quoted from a library; longer ones are cut after a sentence if possible."""
CHECK_FILE_HINT = "Fix the path or the file, or download the file again."


class UnreadableFile(UserError):
    """Error for a file that cannot be read."""


class MissingFile(UnreadableFile):
    """Error for a file that does not exist."""


@dataclass
class FilePosition:
    """Current position in a file that is being read."""

    line: int = 0
    """Line from 1; 0 if unknown or the file has no lines."""
    row: int | None = None
    """Row from 0; None if unknown or the file has no rows."""


@contextmanager
def reading_file(
    path: Path | str, hint: str = CHECK_FILE_HINT, *, max_bytes: int | None = MAX_STREAMED_BYTES
) -> Iterator[FilePosition]:
    """Convert exceptions in the block to a one-line `UnreadableFile`.

    A `UserError` passes unchanged. The block sets the position in the yielded `FilePosition`.

    Args:
        path: file, or a description for the message if `max_bytes` is None.
        hint: second sentence of the message.
        max_bytes: size limit of a plain file; None if `path` is not a plain file.
    """
    at = FilePosition()
    try:
        if max_bytes is not None:
            _require_plain_file(Path(path), max_bytes)
        yield at
    except UserError:
        raise
    except Exception as error:
        if environment.is_memory_limited() and environment.is_out_of_memory(error):
            raise  # the command reports that --memory-limit was exceeded
        line = at.line or _line_of(error)
        location = (
            f"{path}{f' line {line}' if line else ''}{'' if at.row is None else f' row {at.row}'}"
        )
        error_class = (
            MissingFile
            if isinstance(error, FileNotFoundError | NotADirectoryError)
            else UnreadableFile
        )
        raise error_class(f"{location} cannot be read: {error_reason(error)}.", hint) from error


def error_reason(error: Exception) -> str:
    """Describe an exception raised by a file-reading library on one short line."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    if isinstance(error, UnicodeEncodeError):
        return "it contains half of a surrogate pair"
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        return f"not valid JSON ({error.msg.removesuffix(' at')} at {line}column {error.colno})"
    if environment.is_out_of_memory(error):
        return "it does not fit into memory"
    text = str((isinstance(error, OSError) and error.strerror) or error)
    if _line_of(error):
        text = f"not valid YAML, {getattr(error, 'problem', '')}"
    if type(error).__name__ == "ValidationError":  # of pydantic, which is not imported for this
        first_error = error.errors()[0]  # type: ignore[attr-defined]
        location = ".".join(map(str, first_error["loc"]))
        text = ": ".join(filter(None, (location, first_error["msg"].removeprefix("Value error, "))))
    lines = [line for line in text.splitlines() if line.strip()]
    text = " ".join(lines[0].split()) if lines else ""
    if len(text) > MAX_REASON_CHARS:
        text = text[:MAX_REASON_CHARS].rpartition(". ")[0] or text[:MAX_REASON_CHARS]
    text = text.rstrip(".")
    needs_type_name = (
        isinstance(error, KeyError | TypeError | AttributeError | IndexError) or not text
    )
    return f"{type(error).__name__}: {text}".removesuffix(": ") if needs_type_name else text


def _line_of(error: Exception) -> int:
    """Return the line number of a YAML error, from 1; 0 for other errors."""
    mark = getattr(error, "problem_mark", None)
    return 0 if mark is None else mark.line + 1


def _require_plain_file(path: Path, max_bytes: int) -> None:
    """Raise an error unless the path is a plain file of at most `max_bytes`."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a plain file")
    if status.st_size > max_bytes:
        raise ValueError(
            f"it has {format_bytes(status.st_size)}, but the limit is {format_bytes(max_bytes)}"
        )


def read_text(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> str:
    """Read a UTF-8 file."""
    with reading_file(path, max_bytes=max_bytes):
        return path.read_text(encoding="utf-8")


def read_json(path: Path, hint: str = CHECK_FILE_HINT) -> Json:
    """Read a JSON file."""
    with reading_file(path, hint, max_bytes=MAX_RECORD_BYTES):
        return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Json:
    """Parse JSON. Raises a ValueError beyond a nesting depth of `MAX_JSON_DEPTH`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        nested = [
            container.values() if isinstance(container, dict) else container
            for container in level
            if isinstance(container, dict | list)
        ]
        if not (level := [inner for values in nested for inner in values]):
            return value
    raise ValueError("it is nested too deep")


def read_json_object(path: Path, hint: str = CHECK_FILE_HINT) -> dict[str, Any]:
    """Read a JSON file that contains an object."""
    value = read_json(path, hint=hint)
    if not isinstance(value, dict):
        raise UnreadableFile(
            f"{path} cannot be read: it contains a {type(value).__name__}, not an object.", hint
        )
    return value


@contextmanager
def open_parquet(
    path: Path, hint: str = CHECK_FILE_HINT, *, max_bytes: int = MAX_STREAMED_BYTES
) -> Iterator[tuple[Any, FilePosition]]:
    """Open a Parquet file. Yields a `pyarrow.parquet.ParquetFile` and the current position."""
    import pyarrow.parquet as pq

    with reading_file(path, hint, max_bytes=max_bytes) as at, pq.ParquetFile(path) as file:
        refuse_duplicate_names(file.schema_arrow.names)
        unpacked = sum(
            file.metadata.row_group(group).total_byte_size
            for group in range(file.metadata.num_row_groups)
        )
        if unpacked > MAX_RECORD_BYTES and unpacked > MAX_UNPACK_RATIO * path.stat().st_size:
            raise ValueError(
                f"its header declares more than {MAX_UNPACK_RATIO} times its size when unpacked"
            )
        yield file, at


def refuse_duplicate_names(names: Sequence[str]) -> None:
    """Raise a ValueError if two columns have the same name."""
    if duplicate := next(
        (name for number, name in enumerate(names) if name in names[:number]), None
    ):
        raise ValueError(f"two columns are called {duplicate!r:.60}")


LOCK_FILE, INDEX_FILE = ".lock", ".ttabench.json"
"""Lock that every writer of results takes, and list of the files we wrote in a user's folder."""
PART_SUFFIX = ".ttabench.part"
"""Name suffix of files and folders that are being written."""
_APPEND_FLAGS = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
"""Flags that make opening fail on a symbolic link, and on a pipe without a reader."""


def refuse_foreign_path(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raise a UserError if `path` exists and `is_ours` does not recognise it as ours."""
    if os.path.lexists(path) and not is_ours(path):
        raise UserError(
            f"{path} exists and was not written by ttabench.", "Remove it, or use another path."
        )


@contextmanager
def replace_atomically(
    path: Path, *, folder: bool = False, is_ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield a new file or folder that replaces `path` at the end of the block.

    An exception removes it. `is_ours`: see `refuse_foreign_path`; None for internal paths.
    """
    if is_ours is not None:
        refuse_foreign_path(path, is_ours)
    scratch_name = (PART_SUFFIX, f".{path.name[:100]}.", path.parent)
    if folder:
        scratch = Path(mkdtemp(*scratch_name))
    else:
        descriptor, name = mkstemp(*scratch_name)
        os.close(descriptor)
        scratch = Path(name)
    try:
        yield scratch
        for part in [scratch, *scratch.rglob("*")]:
            # safetensors and mkstemp let only the owner read
            part.chmod(0o755 if part.is_dir() else 0o644)
            if not part.is_dir():
                with part.open("rb") as file:
                    os.fsync(file.fileno())  # before the rename
        move_path(scratch, path)
    except BaseException:
        with suppress(OSError):
            remove_path(scratch)
        raise


def move_path(path: Path, target: Path) -> None:
    """Rename a file or folder within one file system, and sync its new folder where possible."""
    path.replace(target)
    with suppress(OSError):
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(
    path: Path, content: str | bytes, is_ours: Callable[[Path], bool] | None = None
) -> None:
    """Write a file so that other processes see either the old or the new content.

    `is_ours`: see `refuse_foreign_path`.
    """
    try:
        with replace_atomically(path, is_ours=is_ours) as scratch:
            scratch.write_bytes(_encode_text(content) if isinstance(content, str) else content)
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def concatenate_files(parts: Sequence[Path], path: Path) -> None:
    """Write the contents of files one after the other into an existing scratch file."""
    with path.open("wb") as whole_file:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole_file, 2**20)


def append_text(path: Path, text: str) -> None:
    """Append lines to a file and sync it. A crash may leave an incomplete line; readers drop it."""
    remaining = _encode_text(text)
    try:
        with os.fdopen(os.open(path, _APPEND_FLAGS, 0o644), "ab", buffering=0) as file:
            while remaining:
                remaining = remaining[os.write(file.fileno(), remaining) :]
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # file names may not be valid text


def truncate_file(path: Path, length: int) -> None:
    """Cut a file to `length` bytes. Needs no free disk space."""
    os.truncate(path, length)


def remove_path(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents, if it exists. Follows no links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Remove partial files of a killed process from a folder. The caller must hold its lock."""
    for partial in folder.glob(f".*{PART_SUFFIX}"):
        with suppress(OSError):
            remove_path(partial)


def validate_path(path: str | Path) -> Path:
    """Convert to a path. Raises a ValueError if it is empty or the system rejects it."""
    if not str(path):
        raise ValueError("the path is empty")
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise ValueError(error.strerror) from None
    return Path(path)


def make_writable_folder(folder: Path, out: Path) -> None:
    """Create a folder with its parents and check that it is writable. The error names `out`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # another process's `remove_partial_files` must not match this name
        TemporaryFile(dir=folder, prefix=".probe.").close()
    except OSError as error:
        raise unwritable_error(out, error) from None


def unwritable_error(folder: Path, error: OSError) -> UserError:
    """Create the user error for a folder that cannot be written."""
    return UserError(
        f"Cannot write in {folder}: {error.strerror or error}.", "Use another folder with --out."
    )


@contextmanager
def hold_lock(folder: Path, on_busy: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a folder. If it is taken, call `on_busy`; wait unless that raises."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    lock = FileLock(path)
    try:
        try:
            acquired = lock.acquire(timeout=0)
        except Timeout:
            on_busy()
            acquired = lock.acquire()
    # Timeout is an OSError too, but the second `acquire` has no timeout
    except (OSError, NotImplementedError) as error:
        reason = "it is a folder" if path.is_dir() else getattr(error, "strerror", None) or error
        raise UserError(
            f"The lock {path} cannot be taken: {reason}.", "Remove it, or use another --out."
        ) from None
    with acquired:
        yield


def is_locked(folder: Path) -> bool:
    """True if another process holds the lock of a folder. Creates nothing."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    try:
        if path.is_file():
            with FileLock(path, timeout=0):
                return False
    except (OSError, NotImplementedError) as error:
        return isinstance(error, Timeout)
    return False
