"""The one place where Parquet files of a user's folders are opened; what unpacks to a multiple of itself is not read.

with parquet_file(Path("test.parquet"), 1 << 46) as file:
    file.read(columns=["text"])
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Unreadable, plain, refuse_expanding


def parquet_file(path: Path, most: int) -> Any:
    """A `pyarrow.parquet.ParquetFile` of at most so many bytes, to be closed by the caller.

    Raises:
        OSError: it is not there, or cannot be read.
        Unreadable: it is no plain file, too long, has two columns of one name, or unpacks to a multiple of its size.
        pyarrow.ArrowException: it is no Parquet.
    """
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        try:
            file = opened.enter_context(pq.ParquetFile(plain(path, most)))
            refuse_doubles(file.schema_arrow.names)
        except UnicodeDecodeError:
            raise Unreadable("the name of a column is no UTF-8") from None
        groups = file.metadata.num_row_groups
        refuse_expanding(path, sum(file.metadata.row_group(group).total_byte_size for group in range(groups)))
        opened.pop_all()
    return file


def refuse_doubles(names: Iterable[str]) -> None:
    """See that every column has a name of its own.

    Raises:
        Unreadable: two have one.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Unreadable(f"two columns are called {name!r}")
        seen.add(name)


def longest_column(file: Any) -> int:
    """Bytes of the longest part of a column: no value of the file takes more."""
    meta = file.metadata
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    sizes = [group.column(column).total_uncompressed_size for group in groups for column in range(group.num_columns)]
    return max(sizes, default=0)
