"""Writes runs into one file that may be passed on: no text, no path of this machine; `suite_archive` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.records.local_paths import without_paths
from ttabench.records.packing import joined, store_table
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.schema import RunRecord, text_of
from ttabench.records.scores import digest_of, without_texts
from ttabench.records.suite_archive import FORMAT, VERSION

WORDS = ("start", "chat_end")
"""Of the model, texts that its tokenizer puts around what is read."""


class Part(NamedTuple):
    """The part of a run that may be passed on."""

    record: RunRecord
    scores: Any
    """A `pyarrow.Table`, a row a query; None where no answers are kept."""


def part_of(folder: Path, record: RunRecord) -> Part:
    """The part of a run that may be passed on."""
    import pyarrow as pa

    scores = None
    if has_samples(folder):
        columns = read_samples(folder, record=record)
        table = pa.table({name: pa.array(values) for name, values in columns.items()})
        scores = without_texts(table, {row.subtask or "" for row in record.rows})
    model = {name: digest_of(str(value)) if name in WORDS else value for name, value in record.model.items()}
    content = without_paths({**record.model_dump(mode="json"), "model": model})
    return Part(RunRecord.model_validate(content), scores)


def write_submission(path: Path, parts: Sequence[Part]) -> None:
    """Write runs as one Parquet file, whole or not at all; the same runs give the same bytes."""
    kinds: dict[str, set[str]] = {}
    for column in (column for part in parts if part.scores is not None for column in part.scores.schema):
        if "null" not in str(column.type):
            kinds.setdefault(column.name, set()).add(str(column.type))
    for name, several in kinds.items():
        if len(several) > 1:  # one for both would change values, and their digests
            fault = f"The column {name} of these runs holds {' and '.join(sorted(several))}."
            raise UserError(fault, "Export them to several files.")
    first = {part.record.id: {"created": part.record.created, "record": text_of(part.record)} for part in parts}
    table = joined({part.record.id: part.scores for part in parts}, first)
    store_table(path, table.replace_schema_metadata({FORMAT: VERSION}))
