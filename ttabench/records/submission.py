"""Runs in one file that may be passed on: records and scores, without a text (written by `submitting`).

    lab-b.parquet                   one row a run: id, method, task, ..., `record` (its run.json) and `queries`, which
                                    has a list a column of its samples: names, scores, and digests of the texts
    lab-b.parquet/3f0c2a9b71de      one of them, named as packed runs are

The file says what it is in its metadata. Nothing in it is taken to be right: see `report.theirs`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import Unreadable
from ttabench.core.errors import UserError
from ttabench.core.parquet import parquet_file, refuse_doubles
from ttabench.records.tables import version_of

SUFFIX = ".parquet"
FORMAT, VERSION = b"ttabench submission", b"1"
"""Of the metadata of its schema: a name, and the layout of the file."""
QUERIES = "queries"
TEXTS = ("id", "created", "record")
"""Columns that are read; the others are for people."""
ASK = "Ask for a file that `ttabench export` wrote."
LONGEST = 1 << 34
"""Bytes."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The runs of a submission."""

    records: dict[str, tuple[str, str]]
    """(text of the record, when it was made) by id, in order."""
    rows: dict[str, int]
    """Where the queries of each stand."""
    doubled: tuple[str, ...]
    """Ids that several rows have."""
    queries: Any
    """A `pyarrow.StructArray` of lists, or of nothing where no run has answers."""


def file_of(run: Path) -> Path | None:
    """The submission that a run lies in; None of one in a folder."""
    return run.parent if run.parent.suffix == SUFFIX and run.parent.is_file() else None


def is_submission(file: Path) -> bool:
    """Whether a file is one, whole enough to be read."""
    try:
        return file.suffix == SUFFIX and file.is_file() and bool(submitted(file).records)
    except UserError:
        return False


def submitted(file: Path) -> Submitted:
    """The contents of a submission, read once as long as the file stays the same.

    Raises:
        UserError: it is missing, damaged, or no submission.
    """
    path, version = version_of(file)
    if not version:
        raise UserError(f"There is no file {file}.", "Check the path.")
    return _submitted(path, version)


def table_of(run: Path, columns: list[str] | None = None) -> Any:
    """Columns (all for None) of the samples of FILE/ID as a `pyarrow.Table`; None where it has none.

    Raises:
        UserError: see `submitted`; its columns are of several lengths.
    """
    import pyarrow as pa

    submission = submitted(run.parent)
    row = submission.rows.get(run.name)
    if row is None or submission.queries is None:
        return None
    names = [field.name for field in submission.queries.type]
    cells = {name: submission.queries.field(name)[row] for name in names if columns is None or name in columns}
    own = {name: cell.values for name, cell in cells.items() if cell.is_valid}
    if len(lengths := {len(values) for values in own.values()}) > 1:
        counts = " and ".join(map(str, sorted(lengths)[:2]))
        raise UserError(f"The columns of run {run.name} in {run.parent} have {counts} queries.", ASK)
    return pa.table(own) if own and submission.queries[row].is_valid else None


@lru_cache(maxsize=8)
def _submitted(path: Path, _changed: tuple[int, ...]) -> Submitted:
    import pyarrow as pa

    try:
        with parquet_file(path, LONGEST) as file:
            _refuse_others(path, file.schema_arrow)
            table = file.read(columns=[*TEXTS, QUERIES])
            ids, created, records = (table[name].to_pylist() for name in TEXTS)
    except (OSError, Unreadable, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())[:160]}).", ASK) from None
    if not ids:
        raise UserError(f"{path} holds no run.", ASK)
    if not all(isinstance(text, str) for texts in (ids, created, records) for text in texts):
        raise UserError(f"{path} has a row without id or record.", ASK)
    rows = {name: row for row, name in reversed(list(enumerate(ids)))}
    return Submitted(
        records={name: (records[row], created[row]) for row, name in enumerate(ids) if rows[name] == row},
        rows=rows,
        doubled=tuple(name for name, count in Counter(ids).items() if count > 1),
        queries=table[QUERIES].combine_chunks() if pa.types.is_struct(table[QUERIES].type) else None,
    )


def _refuse_others(path: Path, schema: Any) -> None:
    """See that it is a submission of this layout.

    Raises:
        UserError: it is not.
        Unreadable: two columns of queries have one name.
    """
    import pyarrow.types as kinds

    version = (schema.metadata or {}).get(FORMAT)
    if version is None or not {*TEXTS, QUERIES} <= set(schema.names):
        raise UserError(f"{path} is no submission.", ASK)
    if version != VERSION:
        fault = f"{path} is a submission of layout {version[:20]!r}, this ttabench reads {VERSION.decode()}."
        raise UserError(fault, "Install the ttabench that wrote it.")
    queries = schema.field(QUERIES).type
    if not (kinds.is_struct(queries) or kinds.is_null(queries)):
        raise UserError(f"{path} is no submission: its column {QUERIES} holds {queries}.", ASK)
    columns = list(queries) if kinds.is_struct(queries) else []
    refuse_doubles(column.name for column in columns)
    for column in columns:
        if not kinds.is_list(column.type):
            fault = f"{path} is no submission: {QUERIES}.{column.name[:40]} holds {column.type}."
            raise UserError(fault, ASK)
