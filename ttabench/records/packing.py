"""Moves the finished runs of a folder into its two files (see schema.py), and writes runs into one file for others: no
text, no path of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core.errors import UserError
from ttabench.core.files import LOCK_FILE, locked, read_text, remove
from ttabench.records.local_paths import without_paths
from ttabench.records.samples import (
    SCORES_FILE,
    digest_of,
    has_samples,
    read_samples,
    samples_table,
    store_table,
    without_texts,
)  # fmt: skip
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, SAMPLES_FILE, RunRecord, load_record, runs, text_of

WORDS = ("start", "chat_end")
"""Of the model, texts that its tokenizer puts around what is read."""


def pack(suite: Path, *, scores: bool = False) -> int:
    """Move every finished run below a folder into its files; returns how many.

    A run that is packed already is replaced. Folders are removed once their content has been read back. With `scores`,
    samples are written without their texts, too, into a file that may be passed on.
    """
    import pyarrow as pa

    folders = {file.parent.name: file.parent for file in suite.glob(f"*/{RECORD_FILE}")}
    if not folders:
        return 0
    with locked(suite, lambda: None):
        texts = {name: run.record for name, run in runs(suite).items()}
        texts |= {name: read_text(folder / RECORD_FILE) for name, folder in folders.items()}
        records = {name: load_record(suite / name) for name in texts}
        order = sorted(records, key=lambda name: (records[name].created, name))
        tables = {name: table for name in order if (table := samples_table(suite / name))}
        _write_samples(suite / SAMPLES_FILE, tables)
        if scores:
            bare = {name: without_texts(table, _subtasks(records[name])) for name, table in tables.items()}
            _write_samples(suite / SCORES_FILE, bare)
        rows = [{"id": name, "created": records[name].created, "record": texts[name]} for name in order]
        store_table(suite / RUNS_FILE, pa.Table.from_pylist(rows))
        packed = runs(suite)
        for name, folder in folders.items():
            if packed[name].record != read_text(folder / RECORD_FILE):
                raise UserError(f"{folder} was not packed as it is.", "Leave it alone while it is packed.")
            for file in (RECORD_FILE, SAMPLES_FILE, LOCK_FILE):
                remove(folder / file)
            with suppress(OSError):  # something else lies in it
                folder.rmdir()
    return len(folders)


def _subtasks(record: RunRecord) -> set[str]:
    return {row.subtask or "" for row in record.rows}


def _write_samples(path: Path, samples: Mapping[str, Any]) -> None:
    if samples:
        store_table(path, _joined(samples))
    else:
        remove(path)


def _joined(samples: Mapping[str, Any], first: Mapping[str, Mapping[str, str]] | None = None) -> Any:
    """One table of the samples of runs (None where one has none), in this order, and of each texts by name that stand
    in its first row alone (`first`); columns that only some of them have are null elsewhere."""
    import pyarrow as pa

    tables = []
    for name, table in samples.items():
        own = table or pa.table({})
        count, metadata = max(1, len(own)), {"run": name, "own_columns": " ".join(own.column_names)}
        columns = {key: pa.array([text] * count) for key, text in metadata.items()}
        for key, text in (first or {}).get(name, {}).items():
            columns[key] = pa.array([text, *[None] * (count - 1)])
        tables.append(pa.table([*columns.values(), *own.columns], names=[*columns, *own.column_names]))
    return pa.concat_tables(tables, promote_options="permissive")


Part: TypeAlias = tuple[RunRecord, Any]
"""Of a run what may be passed on: its record, and a `pyarrow.Table`, a row a query; None where no answers are kept."""


def part_of(folder: Path, record: RunRecord) -> Part:
    """The part of a run that may be passed on."""
    table = None
    if has_samples(folder):
        read_samples(folder, record=record)  # refuses those of another run
        table = without_texts(samples_table(folder), _subtasks(record))
    model = {name: digest_of(str(value)) if name in WORDS else value for name, value in record.model.items()}
    content = without_paths({**record.model_dump(mode="json"), "model": model})
    return RunRecord.model_validate(content), table


def write_submission(path: Path, parts: Sequence[Part]) -> None:
    """Write runs as one Parquet file, whole or not at all; the same runs give the same bytes."""
    first = {record.id: {"created": record.created, "record": text_of(record)} for record, _ in parts}
    store_table(path, _joined({record.id: scores for record, scores in parts}, first).replace_schema_metadata())
