"""Writes a submission (`submission`): what runs were, cost and scored, without a text or a path of this machine.

    write_submission(Path("lab-b.parquet"), [part_of(Path("runs/3f0c2a9b71de"), record)])

Texts are told by their digests (`scores`), the words around a chat's turns too, and the digests of the samples are
those of what is written, so that whoever reads the file can hold the one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.records.local_paths import without_paths
from ttabench.records.packing import columns_of, store_table, table_of_runs
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.schema import RunRecord, text_of
from ttabench.records.score_digests import digests_of
from ttabench.records.scores import digest_of, without_texts
from ttabench.records.submission import FORMAT, QUERIES, VERSION

WORDS = ("start", "chat_end")
"""Of the model, texts that its tokenizer puts around what is read."""


class Part(NamedTuple):
    """The part of a run that may be passed on."""

    record: RunRecord
    scores: Any
    """A `pyarrow.Table`, a row a query; None where no answers are kept."""


def part_of(folder: Path, record: RunRecord) -> Part:
    """The part of a run that may be passed on.

    Raises:
        UserError: samples that cannot be read, or are not those of the record.
    """
    scores = _scores(folder, record)
    return Part(_record(record, scores), scores)


def write_submission(path: Path, parts: Sequence[Part]) -> None:
    """Write runs as one Parquet file, whole or not at all; the same runs give the same bytes.

    Raises:
        UserError: scores of other kinds than those of another run; a folder that cannot be written.
    """
    rows = [{**columns_of(part.record), "record": text_of(part.record)} for part in parts]
    table = table_of_runs(rows).append_column(QUERIES, _queries([part.scores for part in parts]))
    store_table(path, table.replace_schema_metadata({FORMAT: VERSION}))


def _scores(folder: Path, record: RunRecord) -> Any:
    """The samples of a run as a `pyarrow.Table` without a text; None where no answers are kept."""
    import pyarrow as pa

    if not has_samples(folder):
        return None
    columns = read_samples(folder, record=record)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    return without_texts(table, {row.subtask or "" for row in record.rows})


def _record(record: RunRecord, scores: Any) -> RunRecord:
    """The same without a path or a text, and with the digests of its scores."""
    model = {name: digest_of(str(value)) if name in WORDS else value for name, value in record.model.items()}
    content = without_paths({**record.model_dump(mode="json"), "model": model})
    if scores is not None:
        content["sample_digests"] = digests_of(scores.to_pydict())
    return RunRecord.model_validate(content)


def _queries(scores: Sequence[Any]) -> Any:
    """A `pyarrow.StructArray`: a list a column and run; null where a run lacks the column."""
    import pyarrow as pa

    known = [own for own in scores if own is not None]
    names = list(dict.fromkeys(name for own in known for name in own.column_names))
    if not names:
        return pa.nulls(len(scores))
    lists = []
    for name in names:
        cells = [own[name].to_pylist() if own is not None and name in own.column_names else None for own in scores]
        lists.append(pa.array(cells, type=pa.list_(_kind(name, known))))
    return pa.StructArray.from_arrays(lists, names, mask=pa.array([own is None for own in scores]))


def _kind(name: str, scores: Sequence[Any]) -> Any:
    """The one type of a column, those that hold nothing aside: a wider one would change values, and their digests.

    Raises:
        UserError: two runs have it of several types.
    """
    import pyarrow as pa

    kinds = {own[name].type for own in scores if name in own.column_names}
    full = kinds - {pa.null(), pa.list_(pa.null())} or kinds - {pa.null()} or kinds
    if len(full) > 1:
        fault = f"The column {name} of these runs holds {' and '.join(sorted(map(str, full)))}."
        raise UserError(fault, "Export them to several files.")
    return full.pop()
