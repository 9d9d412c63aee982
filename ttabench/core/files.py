"""Where files are written and opened: written whole or not there, and read so that a fault is one line that names them.

write_atomically(Path("run.json"), text)
with replacing(Path("samples.parquet")) as scratch:
    write_table(table, scratch)           a reader sees the old file (with folder=True folder) or the new, never half
append(Path("partial.jsonl"), lines)                  behind what is there; a fault may leave half a line
with reading(Path("test.jsonl")) as at:
    for at.line, text in enumerate(file, start=1):
        json.loads(text)               Unreadable: test.jsonl line 3 cannot be read: not valid JSON (Expecting ...)

Nothing is written through a link, and all is on the disk before it takes its name. What is being written has a name
that ends in `.ttabench.part`; what a killed process left of it is removed by `sweep`, which whoever holds the lock of a
folder calls. `tests/core/test_writing.py` sees that no other module writes.
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
"""How many times its own size a long Parquet file may unpack to."""
MAX_RECORD_BYTES = 256 * 2**20
"""Bytes; no record or header of this package comes near."""
MAX_STREAMED_BYTES = 1 << 46
"""Bytes; whatever a disk holds, of files that are not read into memory at once."""
MAX_JSON_DEPTH = 100
"""Lists and objects in each other, in JSON."""
MAX_REASON_CHARS = 160
"""Of what a library raised; longer texts end with a whole sentence, where one fits."""
CHECK_FILE_HINT = "Check the path, mend the file, or get it anew."


class UnreadableFile(UserError):
    """A file that cannot be read."""


class MissingFile(UnreadableFile):
    """A file that is not there."""


@dataclass
class FilePosition:
    """The place in a file that is being read."""

    line: int = 0
    """From 1; 0 where a file has no lines, or none is known."""
    row: int | None = None
    """From 0, in the same way."""


@contextmanager
def reading_file(
    path: Path | str, hint: str = CHECK_FILE_HINT, *, max_bytes: int | None = MAX_STREAMED_BYTES
) -> Iterator[FilePosition]:
    """Read a file: whatever is raised within becomes an `Unreadable` of one line, but for a `UserError`, which stays.

    Args:
        hint: how to mend it.
        most: bytes that it may have; None of what is no plain file, a folder say.
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
            raise  # of a limit that was asked for; the advice is the command's
        line = at.line or _line_of(error)
        where = (
            f"{path}{f' line {line}' if line else ''}{'' if at.row is None else f' row {at.row}'}"
        )
        kind = (
            MissingFile
            if isinstance(error, FileNotFoundError | NotADirectoryError)
            else UnreadableFile
        )
        raise kind(f"{where} cannot be read: {error_reason(error)}.", hint) from error


def error_reason(error: Exception) -> str:
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
    if environment.is_out_of_memory(error):
        return "it does not fit into memory"
    text = str((isinstance(error, OSError) and error.strerror) or error)
    if _line_of(error):
        text = f"not valid YAML, {getattr(error, 'problem', '')}"
    if type(error).__name__ == "ValidationError":  # of pydantic, which is not imported for this
        fault = error.errors()[0]  # type: ignore[attr-defined]
        place = ".".join(map(str, fault["loc"]))
        text = ": ".join(filter(None, (place, fault["msg"].removeprefix("Value error, "))))
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
    """The line that an error of yaml names, from 1; 0 of others."""
    mark = getattr(error, "problem_mark", None)
    return 0 if mark is None else mark.line + 1


def _require_plain_file(path: Path, max_bytes: int) -> None:
    """See that a path is of a plain file of at most so many bytes."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    if status.st_size > max_bytes:
        raise ValueError(
            f"its {format_bytes(status.st_size)} are more than the {format_bytes(max_bytes)} that are read"
        )


def read_text(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> str:
    """The text of a file in UTF-8."""
    with reading_file(path, max_bytes=max_bytes):
        return path.read_text(encoding="utf-8")


def read_json(path: Path, hint: str = CHECK_FILE_HINT) -> Json:
    """The value in a JSON file."""
    with reading_file(path, hint, max_bytes=MAX_RECORD_BYTES):
        return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Json:
    """The value of a text in JSON; one that is nested deeper than `DEEPEST` is refused."""
    value = json.loads(text)
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        nested = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        if not (level := [inner for values in nested for inner in values]):
            return value
    raise ValueError("it is nested too deep")


def read_json_object(path: Path, hint: str = CHECK_FILE_HINT) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path, hint=hint)
    if not isinstance(value, dict):
        raise UnreadableFile(
            f"{path} cannot be read: it holds a {type(value).__name__}, not an object.", hint
        )
    return value


@contextmanager
def open_parquet(
    path: Path, hint: str = CHECK_FILE_HINT, *, max_bytes: int = MAX_STREAMED_BYTES
) -> Iterator[tuple[Any, FilePosition]]:
    """A `pyarrow.parquet.ParquetFile` of at most so many bytes, and the place that is being read."""
    import pyarrow.parquet as pq

    with reading_file(path, hint, max_bytes=max_bytes) as at, pq.ParquetFile(path) as file:
        refuse_duplicate_names(file.schema_arrow.names)
        unpacked = sum(
            file.metadata.row_group(group).total_byte_size
            for group in range(file.metadata.num_row_groups)
        )
        if unpacked > MAX_RECORD_BYTES and unpacked > MAX_UNPACK_RATIO * path.stat().st_size:
            raise ValueError(
                f"it says that it unpacks to more than {MAX_UNPACK_RATIO} times its size"
            )
        yield file, at


def refuse_duplicate_names(names: Sequence[str]) -> None:
    """See that every column has a name of its own."""
    if double := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise ValueError(f"two columns are called {double!r:.60}")


LOCK_FILE, INDEX_FILE = ".lock", ".ttabench.json"
"""What stands beside our files: a lock that every writer of results takes, and their list in a folder of the user's."""
PART_SUFFIX = ".ttabench.part"
"""How the names of files and folders end that are still being written: nobody else's do."""
_APPEND_FLAGS = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
"""A link is refused, and so is a pipe that nobody reads, instead of waiting for a reader."""


def refuse_foreign_path(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Refuse to replace what is at `path`, unless `is_ours` recognises it as written by this package."""
    if os.path.lexists(path) and not is_ours(path):
        raise UserError(
            f"{path} exists, and ttabench does not replace it.",
            "Move it away, or use another path.",
        )


@contextmanager
def replace_atomically(
    path: Path, *, folder: bool = False, is_ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """A new, empty file (or folder) beside `path`, which takes its place when the block ends; else it is removed.
    `is_ours`: see `refuse_others`; None for paths that only this package uses."""
    if is_ours is not None:
        refuse_foreign_path(path, is_ours)
    place = (PART_SUFFIX, f".{path.name[:100]}.", path.parent)
    if folder:
        scratch = Path(mkdtemp(*place))
    else:
        number, name = mkstemp(*place)
        os.close(number)
        scratch = Path(name)
    try:
        yield scratch
        for part in [scratch, *scratch.rglob("*")]:
            part.chmod(
                0o755 if part.is_dir() else 0o644
            )  # safetensors and mkstemp let only the owner read
            if not part.is_dir():
                with part.open("rb") as file:
                    os.fsync(file.fileno())  # so that a rename never outruns it
        move_path(scratch, path)
    except BaseException:
        with suppress(OSError):
            remove_path(scratch)
        raise


def move_path(path: Path, target: Path) -> None:
    """Give a file, or a folder, another name on the same disk, and wait until that is on it, where the system can."""
    path.replace(target)
    with suppress(OSError):
        number = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_atomically(
    path: Path, content: str | bytes, is_ours: Callable[[Path], bool] | None = None
) -> None:
    """Write a text, or bytes, so that a reader sees the old file or the new one, never half of it; `is_ours`: see
    `replacing`."""
    try:
        with replace_atomically(path, is_ours=is_ours) as scratch:
            scratch.write_bytes(_encode_text(content) if isinstance(content, str) else content)
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def concatenate_files(parts: Sequence[Path], path: Path) -> None:
    """Write what some files hold, one after the other, into a file of `replacing`."""
    with path.open("wb") as whole_file:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole_file, 2**20)


def append_text(path: Path, text: str) -> None:
    """Add whole lines to a file; they are on the disk afterwards. Who reads drops half a line that a fault has left."""
    left = _encode_text(text)
    try:
        with os.fdopen(os.open(path, _APPEND_FLAGS, 0o644), "ab", buffering=0) as file:
            while left:
                left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # names of files may be no text


def truncate_file(path: Path, length: int) -> None:
    """Drop what a file holds after so many bytes; needs no room on the disk."""
    os.truncate(path, length)


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all below it, if it is there; of a link the link, never what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Remove what a killed process left half written in a folder; the caller holds its lock, so that nobody writes."""
    for left in folder.glob(f".*{PART_SUFFIX}"):
        with suppress(OSError):
            remove_path(left)


def validate_path(path: str | Path) -> Path:
    """A path that may exist or be written; a ValueError of one that is empty or that the system refuses."""
    if not str(path):
        raise ValueError("the path is empty")
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise ValueError(error.strerror) from None
    return Path(path)


def make_writable_folder(folder: Path, out: Path) -> None:
    """Make a folder, with all above it, and see that it can be written; the error names `out`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(
            dir=folder, prefix=".probe."
        ).close()  # no name that `sweep` of another process knows
    except OSError as error:
        raise unwritable_error(out, error) from None


def unwritable_error(folder: Path, error: OSError) -> UserError:
    """The user error for a folder in which nothing can be written."""
    return UserError(
        f"Cannot write in {folder}: {error.strerror or error}.", "Give another folder with --out."
    )


@contextmanager
def hold_lock(folder: Path, on_busy: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a folder; if another process does, `on_busy` is called, and unless that raises we wait."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    lock = FileLock(path)
    try:
        try:
            taken = lock.acquire(timeout=0)
        except Timeout:
            on_busy()
            taken = lock.acquire()
    except (
        OSError,
        NotImplementedError,
    ) as error:  # Timeout is an OSError, but not one that comes here
        fault = "it is a folder" if path.is_dir() else getattr(error, "strerror", None) or error
        raise UserError(
            f"The lock {path} cannot be taken: {fault}.", "Remove it, or give another --out."
        ) from None
    with taken:
        yield


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder now; nothing is made where there is none."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    try:
        if path.is_file():
            with FileLock(path, timeout=0):
                return False
    except (OSError, NotImplementedError) as error:
        return isinstance(error, Timeout)
    return False
