"""The samples of a run as a file: written with their digests, read by column, and held against the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Missing, parquet_file, reading
from ttabench.core.errors import UserError
from ttabench.core.files import replacing, unwritable
from ttabench.core.types import Json
from ttabench.records import suite_archive
from ttabench.records.samples import COLUMNS
from ttabench.records.schema import RECORD_FILE, SAMPLES_FILE, RunRecord, is_stored
from ttabench.records.scores import changed_column, digests_of

LONGEST = 1 << 40
"""Bytes of a file of samples."""
LARGEST = 1e100
"""No number of a query is so large; sums of such do not overflow."""
LARGEST_PAGE = 1 << 26
"""Bytes. Texts repeat from run to run: one dictionary of them and long pages make the files several times smaller."""
LEVEL = 15
NAMING = ("episode", "key")
"""Columns without which samples are of no query."""


def store_table(path: Path, table: Any) -> None:
    """Write a `pyarrow.Table` as Parquet, whole or not at all."""
    import pyarrow.parquet as pq

    try:
        with replacing(path) as scratch:
            pq.write_table(table.combine_chunks(), scratch, compression="zstd", compression_level=LEVEL,
                           data_page_size=LARGEST_PAGE, dictionary_pagesize_limit=LARGEST_PAGE)  # fmt: skip
    except OSError as error:
        raise unwritable(path.parent, error) from None


def write_samples(path: Path, samples: Sequence[Mapping[str, Json]]) -> dict[str, str]:
    """Write samples as Parquet, atomically; every sample has the same keys. Returns their digests."""
    import pyarrow as pa

    table = pa.Table.from_pylist([dict(sample) for sample in samples])
    store_table(path, table)
    return digests_of(table.to_pydict())


def has_samples(folder: Path) -> bool:
    """Whether the answers of a run were kept: a packed suite may hold records alone."""
    return (folder / SAMPLES_FILE).exists() or (is_stored(folder) and suite_archive.sample_columns(folder) is not None)


def read_samples(
    folder: Path, columns: Iterable[str] | None = None, record: RunRecord | None = None
) -> dict[str, list[Any]]:
    """Columns of a run's samples (all for None; those that are missing are left out), called as `Sample` calls them.

    Raises:
        UserError: no samples there, a file that is not Parquet, or samples that are not those of the record.
    """
    wanted = None if columns is None else list(columns)
    try:
        content, count = _content(folder, wanted)
    except Missing:
        fault = f"{folder} does not exist, or holds a record and not its answers."
        raise UserError(fault, "Run the evaluation again with --force, or another --out.") from None
    needed = [name for name in NAMING if wanted is None or name in wanted]
    if record is not None and wanted is None and (folder / RECORD_FILE).exists():
        needed += record.sample_digests  # suites that are packed keep fewer
    if record is not None and (wrong := _difference(content, count, record, needed)):
        fault = f"The samples of run {record.id} in {folder} are not those of its record: {wrong}."
        raise UserError(fault, "Restore both files, run again with --force, or remove the folder.")
    return content


def _content(folder: Path, columns: Iterable[str] | None) -> tuple[dict[str, list[Any]], int]:
    """Values by column as `Sample` calls it, and how many samples there are."""
    kept = None if (folder / RECORD_FILE).exists() else suite_archive.sample_columns(folder)
    if kept is not None:
        names = [name for name in (kept if columns is None else columns) if name in kept]
        with reading(folder.parent, most=None):
            table = suite_archive.sample_table(folder, names or kept[:1])  # a table without columns has no length
            return {name: table[name].to_pylist() for name in names}, len(table)
    with parquet_file(folder / SAMPLES_FILE, "Run again with --force.", most=LONGEST) as (file, _):
        stored = file.schema_arrow.names
        names = [name for name in (stored if columns is None else columns) if name in stored]
        table = file.read(columns=names)
        return {name: table[name].to_pylist() for name in names}, len(table)


def _difference(content: Mapping[str, Sequence[Any]], count: int, record: RunRecord, needed: Sequence[str]) -> str:
    """Why these cannot be the samples of a record, in a few words; "" where they can."""
    if missing := [name for name in needed if name not in content]:
        return f"the column {missing[0]} is missing"
    if count != record.n:
        return f"{count} rows for {record.n} queries"
    if column := changed_column(content, record.sample_digests):
        return f"the column {column} has other values"
    return next((f"the column {name} has other values" for name, values in content.items() if _odd(name, values)), "")


def _odd(name: str, values: Sequence[Any]) -> bool:
    """Whether something stands in a column that is of another kind, or no finite number: older records name no digest
    of it."""
    kind = COLUMNS.get(name, "number")
    if kind in ("texts", "numbers"):
        if not all(isinstance(value, list) for value in values):
            return True
        values = [part for value in values for part in value]
    if kind in ("text", "texts"):
        return not all(isinstance(value, str) for value in values)
    numbers = [value for value in values if value is not None]
    return not all(isinstance(value, int | float) and -LARGEST < value < LARGEST for value in numbers)
