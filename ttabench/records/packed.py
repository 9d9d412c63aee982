"""Runs of a suite in two files beside each other, read as if each run had its folder (written by `packing`).

    results/unseen/runs.parquet       one row a run: id, method, task, ... and `record`, the whole text of its run.json
    results/unseen/samples.parquet    the samples of all runs; `run` is the id, `own_columns` names what that run has
    record(Path("results/unseen/3f0c2a9b71de"))      ->  that text; None where no such run is packed

A run that lies in a folder of its own as well is read from there: it is the newer one. Where samples may not be passed
on, the second file is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError

RUNS_FILE = "runs.parquet"
ALL_SAMPLES_FILE = "samples.parquet"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One run of `runs.parquet`."""

    record: str
    """The text of its run.json."""
    created: str


def runs(suite: Path) -> dict[str, Packed]:
    """The packed runs of a suite by id, the oldest first; none where nothing is packed.

    Raises:
        UserError: the file is damaged.
    """
    return _runs(*_version(suite / RUNS_FILE)) if (suite / RUNS_FILE).is_file() else {}


def record(run: Path) -> str | None:
    """The record of SUITE/ID as text, where it is packed."""
    found = runs(run.parent).get(run.name)
    return found.record if found else None


def sample_columns(run: Path) -> list[str] | None:
    """Columns that the samples of SUITE/ID have; None where no samples of such a run are packed.

    Raises:
        UserError: the file is damaged.
    """
    path = run.parent / ALL_SAMPLES_FILE
    if record(run) is None or not path.is_file():
        return None
    return _own_columns(*_version(path)).get(run.name)


def sample_table(run: Path, columns: Iterable[str] | None = None) -> Any:
    """Columns (all for None) of the samples of SUITE/ID as a `pyarrow.Table`; None where no samples are packed.

    Raises:
        UserError: the file is damaged.
    """
    kept = sample_columns(run)
    if kept is None:
        return None
    import pyarrow as pa

    wanted = kept if columns is None else list(columns)
    table = _samples(*_version(run.parent / ALL_SAMPLES_FILE), ("run", *wanted))
    # slices, not a filter, for which pyarrow imports pandas
    parts, first = [table.slice(0, 0)], 0
    for name, rows in groupby(table["run"].to_pylist()):
        count = sum(1 for _ in rows)
        if name == run.name:
            parts.append(table.slice(first, count))
        first += count
    return pa.concat_tables(parts).select(wanted)


def read_table(path: Path, columns: Iterable[str] | None = None) -> Any:
    """A `pyarrow.Table` of these columns, or all.

    Raises:
        UserError: the file is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if missing := set(columns or ()) - set(file.schema_arrow.names):
                raise pa.ArrowInvalid(f"no column {min(missing)}")
            return file.read(columns=None if columns is None else list(columns))
    except (OSError, pa.ArrowException) as error:
        what = " ".join(str(error).split())[:160]
        raise UserError(f"{path} cannot be read ({what}).", "Restore it: runs are packed in it.") from None


def _version(path: Path) -> tuple[Path, tuple[int, ...]]:
    """What tells a file from the one that stood there before: as long as it is the same, it is read once."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return path, ()
    return path, (found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=16)
def _runs(path: Path, _changed: tuple[int, ...]) -> dict[str, Packed]:
    found = read_table(path, ("id", "record", "created")).to_pylist()
    return {row["id"]: Packed(record=row["record"], created=row["created"]) for row in found}


@lru_cache(maxsize=16)
def _own_columns(path: Path, _changed: tuple[int, ...]) -> dict[str, list[str]]:
    # not `group_by`, for which pyarrow imports pandas
    found = read_table(path, ("run", "own_columns"))
    told = dict(zip(found["run"].to_pylist(), found["own_columns"].to_pylist(), strict=True))
    return {run: columns.split() for run, columns in told.items()}


@lru_cache(maxsize=4)
def _samples(path: Path, _changed: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """Columns of all runs: they are asked for run by run."""
    return read_table(path, columns)
