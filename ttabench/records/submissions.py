"""Writes runs into one file, for others: no text, no path of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.records.local_paths import remove_paths
from ttabench.records.samples import (
    digest_of,
    has_samples,
    read_samples,
    samples_table,
    store_table,
    without_texts,
)
from ttabench.records.schema import RunRecord, is_submission, record_text

TOKENIZER_TEXTS = ("start", "chat_end")
"""Of the model, texts that its tokenizer puts around what is read."""


def subtask_names(record: RunRecord) -> set[str]:
    """Names that stand in a run's figures."""
    return {row.subtask or "" for row in record.rows}


def join_samples(
    samples: Mapping[str, Any], first: Mapping[str, Mapping[str, str]] | None = None
) -> Any:
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
        tables.append(
            pa.table([*columns.values(), *own.columns], names=[*columns, *own.column_names])
        )
    return pa.concat_tables(tables, promote_options="permissive")


ExportedRun: TypeAlias = tuple[RunRecord, Any]
"""Of a run what may be passed on: its record, and a `pyarrow.Table`, a row a query; None where no answers are kept."""


def export_run(folder: Path, record: RunRecord) -> ExportedRun:
    """The part of a run that may be passed on."""
    table = None
    if has_samples(folder):
        read_samples(folder, record=record)  # refuses those of another run
        table = without_texts(samples_table(folder), subtask_names(record))
    model = {
        name: digest_of(str(value)) if name in TOKENIZER_TEXTS else value
        for name, value in record.model.items()
    }
    content = remove_paths({**record.model_dump(mode="json"), "model": model})
    return RunRecord.model_validate(content), table


def write_submission(path: Path, exported: Sequence[ExportedRun]) -> None:
    """Write runs as one Parquet file, whole or not at all; the same runs give the same bytes."""
    first = {
        record.id: {"created": record.created, "record": record_text(record)}
        for record, _ in exported
    }
    table = join_samples(
        {record.id: scores for record, scores in exported}, first
    ).replace_schema_metadata()
    store_table(path, table, is_submission)
