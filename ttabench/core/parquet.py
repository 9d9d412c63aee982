"""The one place where Parquet files of a user are opened; what would unpack to a multiple of itself is not read.

with parquet_file(Path("test.parquet")) as (file, at):
    file.read(columns=["text"])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import ANY, LONGEST, MEND, At, reading

TIMES = 100
"""How many times its own size a long file may unpack to."""


@contextmanager
def parquet_file(path: Path, hint: str = MEND, *, most: int = ANY) -> Iterator[tuple[Any, At]]:
    """A `pyarrow.parquet.ParquetFile` of at most so many bytes, and the place that is being read."""
    import pyarrow.parquet as pq

    with reading(path, hint, most=most) as at, pq.ParquetFile(path) as file:
        refuse_doubles(file.schema_arrow.names)
        unpacked = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        if unpacked > LONGEST and unpacked > TIMES * path.stat().st_size:
            raise ValueError(f"it says that it unpacks to more than {TIMES} times its size")
        yield file, at


def refuse_doubles(names: Sequence[str]) -> None:
    """See that every column has a name of its own."""
    if double := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise ValueError(f"two columns are called {double!r:.60}")
