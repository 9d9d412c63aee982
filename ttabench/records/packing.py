"""Moves the finished runs of a folder into its two files (`suite_archive`), and back into folders; and writes runs into
one file that may be passed on: no text, no path of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.checked_file import read_text
from ttabench.core.errors import UserError
from ttabench.core.files import LOCK_FILE, locked, remove, unwritable, write_atomically
from ttabench.core.types import Json
from ttabench.records import suite_archive
from ttabench.records.local_paths import without_paths
from ttabench.records.sample_files import has_samples, read_samples, store_table
from ttabench.records.schema import RECORD_FILE, SAMPLES_FILE, Row, RunRecord, load_record, text_of
from ttabench.records.scores import digest_of, without_texts
from ttabench.records.suite_archive import ALL_SAMPLES_FILE, FORMAT, RUNS_FILE, SCORES_FILE, VERSION, read_table

WORDS = ("start", "chat_end")
"""Of the model, texts that its tokenizer puts around what is read."""


def pack(suite: Path, *, scores: bool = False) -> int:
    """Move every finished run below a folder into its files; returns how many.

    A run that is packed already is replaced. Folders are removed once their content has been read back.

    Args:
        suite: the folder.
        scores: write samples without their texts, too, into a file that may be passed on.
    """
    folders = {file.parent.name: file.parent for file in suite.glob(f"*/{RECORD_FILE}")}
    if not folders:
        return 0
    with locked(suite, lambda: None):
        rows = {name: _row(suite / name) for name in {**suite_archive.runs(suite), **folders}}
        order = sorted(rows, key=lambda name: (rows[name]["created"], name))
        samples = {name: table for name in order if (table := _content(suite / name)[1]) is not None}
        _write_samples(suite / ALL_SAMPLES_FILE, samples)
        if scores:
            named = {name: {row.subtask or "" for row in load_record(suite / name).rows} for name in samples}
            _write_samples(suite / SCORES_FILE, {name: without_texts(samples[name], named[name]) for name in samples})
        store_table(suite / RUNS_FILE, _table_of([rows[name] for name in order]))
        for folder in folders.values():
            if suite_archive.record(folder) != rows[folder.name]["record"]:
                raise UserError(f"{folder} was not packed as it is.", "Leave it alone while it is packed.")
            for name in (RECORD_FILE, SAMPLES_FILE, LOCK_FILE):
                remove(folder / name)
            with suppress(OSError):  # something else lies in it
                folder.rmdir()
    return len(folders)


def unpack(suite: Path, out: Path) -> int:
    """Write every packed run of a suite into a folder of its own below `out`; returns how many.

    A folder that holds a finished run is left as it is. Where `out` is the suite, its files are removed.
    """
    to_unpack = {
        name: run for name, run in suite_archive.runs(suite).items() if not (out / name / RECORD_FILE).exists()
    }
    for name, run in to_unpack.items():
        if not name.isalnum():
            raise UserError(f"{suite / suite_archive.RUNS_FILE} has a run called {name!r}.", "Restore the file.")
        folder = out / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(out, error) from None
        if (samples := suite_archive.sample_table(suite / name)) is not None:
            store_table(folder / SAMPLES_FILE, samples)
        write_atomically(folder / RECORD_FILE, run.record)
    if out == suite:
        for name in (RUNS_FILE, ALL_SAMPLES_FILE, SCORES_FILE):
            remove(suite / name)
    return len(to_unpack)


def _row(run: Path) -> dict[str, Json]:
    """The row of a run in `runs.parquet`: columns to look runs up by, and the record itself."""
    record = load_record(run)
    if record.id != run.name:
        raise UserError(f"{run} holds the record of run {record.id}.", "Give the folder that name.")
    main = record.value(record.main_metric)
    return {
        "id": record.id,
        "method": record.config.get("method"),
        "task": record.config.get("task"),
        "source": record.source,
        "model": record.base,
        "seed": record.config.get("seed"),
        "state_of": record.state_of,
        "n": record.n,
        "metric": record.main_metric,
        "value": main.value if main else None,
        "stderr": main.stderr if main else None,
        "created": record.created,
        "record": _content(run)[0],
    }


def _content(run: Path) -> tuple[str | None, Any]:
    """The text of a run's record and the table of its samples: of its folder where it has one, else as packed."""
    if not (run / RECORD_FILE).exists():
        return suite_archive.record(run), suite_archive.sample_table(run)
    samples = read_table(run / SAMPLES_FILE) if (run / SAMPLES_FILE).exists() else None
    samples = None if samples is None or not len(samples) else samples
    return read_text(run / RECORD_FILE), samples


def _table_of(rows: Sequence[Mapping[str, Json]]) -> Any:
    import pyarrow as pa

    arrow: dict[Any, Any] = {int: pa.int64(), float: pa.float64(), float | None: pa.float64()}
    kinds = {name: arrow.get(field.annotation, pa.string()) for name, field in Row.model_fields.items()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in rows[0]])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def _write_samples(path: Path, samples: Mapping[str, Any]) -> None:
    if samples:
        store_table(path, joined(samples))
    else:
        remove(path)


def joined(samples: Mapping[str, Any], first: Mapping[str, Mapping[str, str]] | None = None) -> Any:
    """One table of the samples of runs, in this order; columns that only some of them have are null elsewhere.

    Args:
        samples: by run; None where it has none.
        first: by run, texts by name that stand in its first row alone.
    """
    import pyarrow as pa

    tables = []
    for name, table in samples.items():
        own = pa.table({}) if table is None else table
        count, metadata = max(1, len(own)), {"run": name, "own_columns": " ".join(own.column_names)}
        columns = {key: pa.array([text] * count) for key, text in metadata.items()}
        for key, text in (first or {}).get(name, {}).items():
            columns[key] = pa.array([text, *[None] * (count - 1)])
        tables.append(pa.table([*columns.values(), *own.columns], names=[*columns, *own.column_names]))
    return pa.concat_tables(tables, promote_options="permissive")


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
