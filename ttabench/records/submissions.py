"""Export of runs into one file for publication, without texts and without local paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.core.files import make_writable_folder, refuse_foreign_path, write_atomically
from ttabench.records.local_paths import remove_paths
from ttabench.records.samples import (
    digest_of,
    has_samples,
    read_samples,
    samples_table,
    store_table,
    without_texts,
)
from ttabench.records.schema import Row, RunRecord, is_submission, record_text

TOKENIZER_TEXTS = ("start", "chat_end")
"""Model fields with texts that the tokenizer puts around the input."""
CARD_FILE, FIGURES_FILE, QUERIES_FILE = "README.md", "figures.parquet", "queries.parquet"
"""Files of a dataset for a hub: its card, all figures, and the submission."""
CARD = f"""---
pretty_name: Results of ttabench
tags:
- ttabench
- test-time-adaptation
configs:
- config_name: figures
  data_files: {FIGURES_FILE}
  default: true
- config_name: queries
  data_files: {QUERIES_FILE}
---

# Results of ttabench

Runs of methods for test-time adaptation of language models.

- `figures` has one row per figure of a run: method, task, model, seed, metric, value, n, standard error, interval.
- `queries` has one row per query: its scores, without texts. The first row of a run has its record in `record`.

```python
from datasets import load_dataset

figures = load_dataset("USER/NAME", "figures", split="train")
```

Download `{QUERIES_FILE}` to check the figures and to compare the runs with your own:

```bash
ttabench check {QUERIES_FILE}
ttabench compare results/mine {QUERIES_FILE}
```
"""


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


def write_dataset(folder: Path, exported: Sequence[ExportedRun]) -> None:
    """Write runs as a dataset for a hub: figures, submission and card. An existing card is kept.

    Raises:
        UserError: the folder cannot be written, or has other files of these names.
    """
    import pyarrow as pa

    make_writable_folder(folder, folder)
    for name in (QUERIES_FILE, FIGURES_FILE):
        refuse_foreign_path(folder / name, lambda _: is_submission(folder / QUERIES_FILE))
    figures = [row.model_dump() for record, _ in exported for row in record.rows]
    columns = {name: [row[name] for row in figures] for name in Row.model_fields}
    store_table(folder / FIGURES_FILE, pa.table(columns))
    write_submission(folder / QUERIES_FILE, exported)
    if not (folder / CARD_FILE).exists():
        write_atomically(folder / CARD_FILE, CARD)
