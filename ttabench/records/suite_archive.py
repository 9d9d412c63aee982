"""Runs of a suite in two files beside each other, read as if each run had its folder (written by `packing`).

    results/unseen/runs.parquet       one row a run: id, method, task, ... and `record`, the whole text of its run.json
    results/unseen/samples.parquet    the samples of all runs; `run` is the id, `own_columns` names what that run has
    record(Path("results/unseen/3f0c2a9b71de"))      ->  that text; None where no such run is packed

    results/english/piqa/scores.parquet   the same without a text (see `scores`), where texts may not be passed on
    lab-b.parquet                        runs of somebody in one file (see `submission`), found in it by the same names

A run that lies in a folder of its own as well is read from there: it is the newer one. Samples with their texts are
read before those without; a suite may have records alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ttabench.records import submission
from ttabench.records.tables import read_table as read_table
from ttabench.records.tables import texts, version_of

RUNS_FILE = "runs.parquet"
ALL_SAMPLES_FILE = "samples.parquet"
SCORES_FILE = "scores.parquet"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One run of `runs.parquet`."""

    record: str
    """The text of its run.json."""
    created: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """The samples of one run in a file of samples."""

    columns: list[str]
    """Those that it has."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """(first row, rows)."""


def runs(suite: Path) -> dict[str, Packed]:
    """The packed runs of a suite by id, the oldest first; none where nothing is packed."""
    if suite.suffix == submission.SUFFIX and suite.is_file():
        records = submission.submitted(suite).records
        return {name: Packed(record=text, created=created) for name, (text, created) in records.items()}
    path, version = version_of(suite / RUNS_FILE)
    return _runs(path, version) if version else {}


def record(run: Path) -> str | None:
    """The record of SUITE/ID as text, where it is packed."""
    run_stored = runs(run.parent).get(run.name)
    return run_stored.record if run_stored else None


def sample_columns(run: Path) -> list[str] | None:
    """Columns that the samples of SUITE/ID have; None where no samples of such a run are packed."""
    if submission.file_of(run):
        table = submission.table_of(run)
        return None if table is None else list(table.column_names)
    stored = _stored(run)
    return stored[1].columns if stored else None


def sample_table(run: Path, columns: Iterable[str] | None = None) -> Any:
    """Columns (all for None) of the samples of SUITE/ID as a `pyarrow.Table`; None where no samples are packed."""
    if submission.file_of(run):
        return submission.table_of(run, None if columns is None else list(columns))
    if (stored := _stored(run)) is None:
        return None
    file, span = stored
    wanted = span.columns if columns is None else list(columns)
    table = _samples(*file, tuple(wanted))
    parts = [table.slice(start, count).select(wanted) for start, count in span.places]
    if len(parts) == 1:
        return parts[0]
    import pyarrow as pa

    return pa.concat_tables(parts)


def _stored(run: Path) -> tuple[tuple[Path, tuple[int, ...]], Span] | None:
    """The file that has the samples of a packed run, and where they stand in it."""
    if record(run) is None:
        return None
    for name in (ALL_SAMPLES_FILE, SCORES_FILE):
        file = version_of(run.parent / name)
        if file[1] and (span := _spans(*file).get(run.name)):
            return file, span
    return None


@lru_cache(maxsize=64)
def _runs(path: Path, _changed: tuple[int, ...]) -> dict[str, Packed]:
    rows = zip(*texts(path, ("id", "record", "created")), strict=True)
    return {name: Packed(record=record, created=created) for name, record, created in rows}


@lru_cache(maxsize=64)
def _spans(path: Path, _changed: tuple[int, ...]) -> dict[str, Span]:
    """Where the samples of each run stand in the file: as a rule in one place."""
    names, columns = texts(path, ("run", "own_columns"))
    spans: dict[str, Span] = {}
    start = 0
    for name, same in groupby(names):
        count = sum(1 for _ in same)
        own = spans.setdefault(name, Span(columns=columns[start].split()))
        own.places.append((start, count))
        start += count
    return spans


@lru_cache(maxsize=4)
def _samples(path: Path, _changed: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """Columns of all runs: they are asked for run by run."""
    return read_table(path, columns)
