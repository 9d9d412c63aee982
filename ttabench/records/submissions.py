"""Export of runs into one file for publication, without texts and without local paths."""

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
"""Model fields with texts that the tokenizer puts around the input."""


def subtask_names(record: RunRecord) -> set[str]:
    """Collect the sub-task names in a run's figures."""
    return {row.subtask or "" for row in record.rows}


def join_samples(
    samples: Mapping[str, Any], first: Mapping[str, Mapping[str, str]] | None = None
) -> Any:
    """Join the samples of runs (`None` for a run without samples) into one table, in this order.

    `first` has texts by column for each run, which are stored only in the run's first row. Columns
    that a run lacks are null.
    """
    import pyarrow as pa

    tables = []
    for name, table in samples.items():
        known = table or pa.table({})
        count = max(1, len(known))
        metadata = {"run": name, "own_columns": " ".join(known.column_names)}
        columns = {key: pa.array([text] * count) for key, text in metadata.items()}
        for key, text in (first or {}).get(name, {}).items():
            columns[key] = pa.array([text, *[None] * (count - 1)])
        tables.append(
            pa.table([*columns.values(), *known.columns], names=[*columns, *known.column_names])
        )
    return pa.concat_tables(tables, promote_options="permissive")


ExportedRun: TypeAlias = tuple[RunRecord, Any]
"""A record and a `pyarrow.Table` of one row per query, both publishable; `None` if there are no
samples."""


def export_run(folder: Path, record: RunRecord) -> ExportedRun:
    """Remove texts and local paths from a run."""
    table = None
    if has_samples(folder):
        read_samples(folder, record=record)  # raises if they do not match
        table = without_texts(samples_table(folder), subtask_names(record))
    model = {
        name: digest_of(str(value)) if name in TOKENIZER_TEXTS else value
        for name, value in record.model.items()
    }
    content = remove_paths({**record.model_dump(mode="json"), "model": model})
    return RunRecord.model_validate(content), table


def write_submission(path: Path, exported: Sequence[ExportedRun]) -> None:
    """Write runs as one Parquet file, atomically; equal runs give equal bytes."""
    first = {
        record.id: {"created": record.created, "record": record_text(record)}
        for record, _ in exported
    }
    table = join_samples(
        {record.id: scores for record, scores in exported}, first
    ).replace_schema_metadata()
    store_table(path, table, is_submission)
