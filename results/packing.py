"""Packing of a suite's finished runs into its files, see `ttabench/records/schema.py`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.files import LOCK_FILE, hold_lock, read_text, remove_path
from ttabench.records.samples import SCORES_FILE, samples_table, store_table, without_texts
from ttabench.records.schema import RECORD_FILE, RUNS_FILE, SAMPLES_FILE, load_record, packed_runs
from ttabench.records.submissions import join_samples, subtask_names

UNREAD_COLUMNS = ("ask_ms", "ask_cpu_ms")
"""Columns that no table reads: times of single queries. Records have the totals."""


def pack(suite: Path, *, scores: bool = False) -> int:
    """Move every finished run below a folder into its files. Returns the number of runs.

    A run that is packed already is replaced. Folders are removed after their content was read back.
    Columns that no table reads are left out, see `drop_unread_columns`.
    With `scores`, samples without texts are also written, to a file that may be published.
    """
    import pyarrow as pa

    folders = {file.parent.name: file.parent for file in suite.glob(f"*/{RECORD_FILE}")}
    if not folders:
        return 0
    with hold_lock(suite, lambda: None):
        texts = {name: run.record for name, run in packed_runs(suite).items()}
        texts |= {name: read_text(folder / RECORD_FILE) for name, folder in folders.items()}
        records = {name: load_record(suite / name) for name in texts}
        order = sorted(records, key=lambda name: (records[name].created, name))
        tables = {
            name: drop_unread_columns(table)
            for name in order
            if (table := samples_table(suite / name))
        }
        _write_samples(suite / SAMPLES_FILE, tables)
        if scores:
            bare = {
                name: without_texts(table, subtask_names(records[name]))
                for name, table in tables.items()
            }
            _write_samples(suite / SCORES_FILE, bare)
        rows = [
            {"id": name, "created": records[name].created, "record": texts[name]} for name in order
        ]
        store_table(suite / RUNS_FILE, pa.Table.from_pylist(rows))
        packed = packed_runs(suite)
        for name, folder in folders.items():
            if packed[name].record != read_text(folder / RECORD_FILE):
                raise UserError(
                    f"{folder} changed while it was packed.", "Stop its writers and pack again."
                )
            for file in (RECORD_FILE, SAMPLES_FILE, LOCK_FILE):
                remove_path(folder / file)
            with suppress(OSError):  # It has other files.
                folder.rmdir()
    return len(folders)


def drop_unread_columns(table: Any) -> Any:
    """Remove columns that no table reads: times, and the log-likelihoods of all options.

    Log-likelihoods of generated or scored texts stay. Perplexity and answer NLL are computed from
    them.
    """
    is_choice = "mode" in table.column_names and set(table["mode"].to_pylist()) == {"choose"}
    unread = (*UNREAD_COLUMNS, *(("logprobs",) if is_choice else ()))
    return table.drop([name for name in unread if name in table.column_names])


def _write_samples(path: Path, samples: Mapping[str, Any]) -> None:
    if samples:
        store_table(path, join_samples(samples))
    else:
        remove_path(path)
