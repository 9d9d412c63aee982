"""Tables of stored runs as Parquet: their columns, and whether a file is still the one that was read before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Unreadable
from ttabench.core.errors import UserError
from ttabench.core.parquet import parquet_file


def read_table(path: Path, columns: Iterable[str] | None = None) -> Any:
    """A `pyarrow.Table` of these columns, or all."""
    import pyarrow as pa

    try:
        with parquet_file(path, 1 << 46) as file:
            if missing := set(columns or ()) - set(file.schema_arrow.names):
                raise pa.ArrowInvalid(f"no column {min(missing)}")
            return file.read(columns=None if columns is None else list(columns))
    except (OSError, Unreadable, pa.ArrowException) as error:
        raise damaged(path, " ".join(str(error).split())[:160]) from None


def damaged(path: Path, fault: str) -> UserError:
    """The user error for a file of runs that cannot be read."""
    return UserError(f"{path} cannot be read ({fault}).", "Restore it: runs are packed in it.")


def texts(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Columns of texts, each as a list.

    Raises:
        UserError: the file is missing or damaged, or holds there what is no text.
    """
    table = read_table(path, columns)
    try:
        columns_of_text = [table[name].to_pylist() for name in columns]
    except UnicodeDecodeError:
        raise damaged(path, "it holds what is no UTF-8") from None
    for name, values in zip(columns, columns_of_text, strict=True):
        if not all(isinstance(value, str) for value in values):
            raise damaged(path, f"the column {name} has what is no text")
    return columns_of_text


def version_of(path: Path) -> tuple[Path, tuple[int, ...]]:
    """The version of a file, by its size, time and number: while it is the same, the file is read once."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return path, ()
    return path, (status.st_ino, status.st_size, status.st_mtime_ns)
