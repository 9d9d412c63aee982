"""Runs in Parquet files, read as if each run had its folder (written by `packing` and `submission`).

    results/unseen/runs.parquet            one row a run: id, method, task, ... and `record`, the text of its run.json
    results/unseen/samples.parquet         the samples of all runs; `run` is the id, `own_columns` names those it has
    results/english/piqa/scores.parquet    the same without a text (see `scores`), where texts may not be passed on
    lab-b.parquet                          runs of others in one file: as scores.parquet, `record` in a run's first row

    record(Path("results/unseen/3f0c2a9b71de")), record(Path("lab-b.parquet/3f0c2a9b71de"))

A run that lies in a folder of its own as well is read from there: it is the newer one. Samples with their texts are
read before those without; a suite may have records alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.checked_file import parquet_file
from ttabench.core.errors import UserError

RUNS_FILE = "runs.parquet"
ALL_SAMPLES_FILE = "samples.parquet"
SCORES_FILE = "scores.parquet"
RESTORE = "Restore it: runs are packed in it."
SUFFIX = ".parquet"
FORMAT, VERSION = b"ttabench submission", b"2"
"""Of the metadata of a file of others' runs: a name, and its layout."""
ASK = "Ask for a file that `ttabench export` wrote."


class Packed(NamedTuple):
    """One run."""

    record: str
    created: str


class Span(NamedTuple):
    """Where the samples of one run stand in a file of samples."""

    columns: list[str]
    first: int
    rows: int


def file_of(run: Path) -> Path | None:
    """The submission that a run lies in; None of one in a folder."""
    return run.parent if run.parent.suffix == SUFFIX and run.parent.is_file() else None


def is_submission(file: Path) -> bool:
    """Whether a file is one, whole enough to be read."""
    try:
        return file.suffix == SUFFIX and file.is_file() and bool(runs(file))
    except UserError:
        return False


def runs(suite: Path) -> dict[str, Packed]:
    """The packed runs of a suite, or those of a submission, by id, the oldest first; none where nothing is packed."""
    alone = suite.suffix == SUFFIX and suite.is_file()
    path, version = _version_of(suite if alone else suite / RUNS_FILE)
    return _runs(path, version, alone) if version else {}


def record(run: Path) -> str | None:
    """The record of SUITE/ID as text, where it is packed."""
    run_stored = runs(run.parent).get(run.name)
    return run_stored.record if run_stored else None


def sample_columns(run: Path) -> list[str] | None:
    """Columns that the samples of SUITE/ID have; None where no samples of such a run are packed."""
    stored = _stored(run)
    return stored[1].columns if stored else None


def sample_table(run: Path, columns: Iterable[str] | None = None) -> Any:
    """Columns (all for None) of the samples of SUITE/ID as a `pyarrow.Table`; None where no samples are packed."""
    if (stored := _stored(run)) is None:
        return None
    file, span = stored
    wanted = span.columns if columns is None else list(columns)
    return _samples(*file, tuple(wanted)).slice(span.first, span.rows).select(wanted)


def read_table(path: Path, columns: Iterable[str] | None = None) -> Any:
    """A `pyarrow.Table` of these columns, or all."""
    with parquet_file(path, RESTORE) as (file, _):
        if missing := set(columns or ()) - set(file.schema_arrow.names):
            raise ValueError(f"no column {min(missing)}")
        return file.read(columns=None if columns is None else list(columns))


def _version_of(path: Path) -> tuple[Path, tuple[int, ...]]:
    """The version of a file, by its size, time and number: while it is the same, the file is read once."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return path, ()
    return path, (status.st_ino, status.st_size, status.st_mtime_ns)


def _stored(run: Path) -> tuple[tuple[Path, tuple[int, ...]], Span] | None:
    """The file that has the samples of a packed run, and where they stand in it."""
    if record(run) is None:
        return None
    suite = run.parent
    for path in [suite] if file_of(run) else [suite / ALL_SAMPLES_FILE, suite / SCORES_FILE]:
        file = _version_of(path)
        if file[1] and (span := _spans(*file).get(run.name)) and span.columns:
            return file, span
    return None


@lru_cache(maxsize=64)
def _runs(path: Path, _changed: tuple[int, ...], alone: bool) -> dict[str, Packed]:
    if alone:
        with parquet_file(path, ASK) as (file, _):
            if (version := (file.schema_arrow.metadata or {}).get(FORMAT)) is None:
                raise UserError(f"{path} is no submission.", ASK)
            if version != VERSION:
                fault = f"{path} is a submission of layout {version[:20]!r}, this ttabench reads {VERSION.decode()}."
                raise UserError(fault, "Install the ttabench that wrote it.")
    rows = zip(*_texts(path, ("run" if alone else "id", "record", "created"), first=alone), strict=True)
    return {name: Packed(record=record, created=created) for name, record, created in rows}


@lru_cache(maxsize=64)
def _spans(path: Path, _changed: tuple[int, ...]) -> dict[str, Span]:
    names, columns = _texts(path, ("run", "own_columns"))
    spans: dict[str, Span] = {}
    start = 0
    for name, count in ((name, sum(1 for _ in same)) for name, same in groupby(names)):
        if name in spans:
            raise UserError(f"{path} has samples of the run {name} in two places.", RESTORE)
        spans[name] = Span(columns[start].split(), start, count)
        start += count
    return spans


@lru_cache(maxsize=4)
def _samples(path: Path, _changed: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """Columns of all runs: they are asked for run by run."""
    return read_table(path, columns)


def _texts(path: Path, columns: tuple[str, ...], *, first: bool = False) -> list[list[str]]:
    """Columns of texts, each as a list; with `first` of the first row of each run alone."""
    with parquet_file(path, RESTORE) as (file, _):
        if missing := set(columns) - set(file.schema_arrow.names):
            raise ValueError(f"no column {min(missing)}")
        table = file.read(columns=list(columns))
        if first:
            table = table.filter(table["record"].is_valid())
        lists = [table[name].to_pylist() for name in columns]
        for name, values in zip(columns, lists, strict=True):
            if not all(isinstance(value, str) for value in values):
                raise ValueError(f"the column {name} has what is no text")
        return lists
