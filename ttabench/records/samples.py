"""Samples and costs: one value per answered query, one per finished episode, and the sample file.

A sample file is written with digests of its columns, which are stored in the run record. It is read
by column. If texts may not be published, digests replace them. Two runs have the same queries if
the digests of prompts and right answers are equal, with or without texts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.files import (
    open_parquet,
    reading_file,
    refuse_duplicate_names,
    replace_atomically,
    unwritable_error,
)
from ttabench.core.types import Answer, Json, Query, Score
from ttabench.records.schema import (
    PACKED_REMEDY,
    RECORD_FILE,
    SAMPLES_FILE,
    FileVersion,
    RunRecord,
    file_version,
    packed_runs,
    submission_file,
    text_column,
)

SCORES_FILE = "scores.parquet"
"""Samples of a packed suite, without texts."""
MAX_SAMPLES_BYTES = 1 << 40
"""Limit for the size of a sample file."""
PAGE_BYTES = 1 << 26
"""Bytes. Texts repeat from run to run: large pages make the compressed files several times
smaller."""
SAMPLE_COLUMNS = (
    "episode",
    "key",
    "mode",
    "step",
    "context_tokens",
    "source_key",
    "prompt",
    "prediction",
    "answers",
    "ask_ms",
    "ask_cpu_ms",
    "logprobs",
    "tokens",
    "subtask",
    "position",
    "words",
    "ended",
)
"""Columns of a sample table; there is also one column per metric.

A cell is the attribute of that name of the sample, its query, the `want` of the query, or the
answer, else 0.
"""
NAME_COLUMNS = ("episode", "key", "source_key", "subtask")
"""Columns with names; all other string columns are texts."""
MODES = frozenset({"choose", "generate", "score"})
DIGEST_DIGITS = 16
DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{16}")
KEY_PATTERN = re.compile(r"[A-Za-z0-9_.@/:+#-]{0,80}")
"""Keys that cannot be a sentence are kept: ids of published rows, numbers, names of dataset
readers and orders."""


def query_to_store(query: Query) -> Query:
    """Return a query as samples store it: without its window chunks and the text to score."""
    want = query.want
    if isinstance(want, Score):
        want = replace(
            want, continuation="" if want.ids else want.continuation, ids=(), prompt_ids=()
        )
    return replace(query, window=(), want=want)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answered query."""

    episode: str
    ask: Query
    """The query as returned by `query_to_store`."""
    answer: Answer
    metrics: dict[str, float]
    context_tokens: int | None
    """Tokens that were read for its sequence before it."""
    ask_ms: float
    """Its share of the milliseconds of its batch."""
    ask_cpu_ms: float | None = None
    """The same in CPU time; `None` if it was not measured."""
    patch_bytes: int = 0
    """Largest patch of its episode so far."""
    read_slots: int = 0
    """Largest number of keys and values of context, in tokens, that one query of its episode
    read so far."""

    @property
    def key(self) -> str:
        """Key of the query."""
        return self.ask.key

    @property
    def step(self) -> int:
        """Position of the query in the stream, see `types.StreamPosition`."""
        return self.ask.at.count

    def answers_query(self, query: Query, metrics: Collection[str]) -> bool:
        """Return True if the sample answers this query: the queries are equal, and all metrics
        have a value."""
        has_scores = query.mode == "choose" or bool(self.answer.logprobs and self.answer.tokens)
        return (
            self.ask == query_to_store(query) and has_scores and self.metrics.keys() == set(metrics)
        )

    def to_row(self) -> dict[str, Json]:
        """Convert to one flat row of columns, including the metrics."""
        assert not set(self.metrics) & set(SAMPLE_COLUMNS), "a metric has the name of a column"
        levels = (self, self.ask, self.ask.want, self.answer)
        cells = {
            name: next((getattr(level, name) for level in levels if hasattr(level, name)), 0)
            for name in SAMPLE_COLUMNS
        }
        row = {
            name: list(cell) if isinstance(cell, tuple) else cell for name, cell in cells.items()
        }
        return {**row, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class EpisodeCost:
    """The cost of one finished episode in seconds, peak bytes and counts."""

    episode: str
    pieces: int
    tokens_read: int | None
    adapt_seconds: float
    encode_seconds: float
    state_bytes: int
    patch_bytes: int
    adapt_peak_bytes: int | None
    ask_peak_bytes: int | None
    slots: tuple[float, int] | None = None
    """(kept, full context) in keys and values of one token, for methods with a budget. Full
    context has all tokens read, including BOS."""
    truncated: dict[str, int] = field(default_factory=dict)
    """Context that the method could not read, by its own counts ("truncated_tokens" ...)."""
    adapt_cpu_seconds: float | None = None
    """CPU time of reading and encoding; `None` if it was not measured."""


@lru_cache(maxsize=100_000)
def digest_of(text: str) -> str:
    """Return the digest of a text; "" for an empty text, and a digest is returned unchanged."""
    if not text or is_digest(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGEST_DIGITS]}"


def is_digest(text: str) -> bool:
    """Return True if the text is a digest that replaces a text."""
    return DIGEST_PATTERN.fullmatch(text) is not None


def text_or_empty(text: str) -> str:
    """Return the text, or "" if only its digest is kept."""
    return "" if is_digest(text) else text


def key_or_digest(key: str) -> str:
    """Return a key as stored in samples without texts."""
    return key if KEY_PATTERN.fullmatch(key) else digest_of(key)


def without_texts(table: Any, subtasks: Collection[str]) -> Any:
    """Replace every text in a `pyarrow.Table` of samples by its digest.

    Names of modes and of `subtasks` are kept.
    """
    import pyarrow as pa

    kept = {"mode": MODES, "subtask": subtasks}

    def strip_texts(name: str, value: Json) -> Json:
        if isinstance(value, list):
            return [strip_texts(name, part) for part in value]
        if isinstance(value, str) and value not in kept.get(name, ()):
            return key_or_digest(value) if name in NAME_COLUMNS else digest_of(value)
        assert value is None or isinstance(value, str | int | float), f"{name} may contain texts"
        return value

    cells = (
        [strip_texts(field.name, value) for value in table[field.name].to_pylist()]
        for field in table.schema
    )
    return pa.table(
        [pa.array(cell, type=field.type) for cell, field in zip(cells, table.schema, strict=True)],
        names=table.column_names,
    )


def column_digest(values: Sequence[Json]) -> str:
    """Compute the digest of a column's values, in order.

    A text counts by its digest, so the result is the same without texts.
    """
    # `repr` for values that are not JSON, which never match a record
    text = json.dumps([_with_digests(value) for value in values], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def _with_digests(value: Json) -> Json:
    if isinstance(value, list):
        return [_with_digests(part) for part in value]
    return digest_of(value) if isinstance(value, str) else value


def store_table(path: Path, table: Any, ours: Callable[[Path], bool] | None = None) -> None:
    """Write a `pyarrow.Table` as Parquet, atomically; `ours`: see `files.replace_atomically`."""
    import pyarrow.parquet as pq

    try:
        with replace_atomically(path, is_ours=ours) as scratch:
            options = {"compression": "zstd", "compression_level": 19, "data_page_size": PAGE_BYTES}
            pq.write_table(table.combine_chunks(), scratch, **options)
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def write_samples(path: Path, samples: Sequence[Mapping[str, Json]]) -> dict[str, str]:
    """Write samples as Parquet, atomically, and return the digest of every column.

    Every sample has the same keys.
    """
    import pyarrow as pa

    table = pa.Table.from_pylist([dict(sample) for sample in samples])
    store_table(path, table)
    return {name: column_digest(values) for name, values in table.to_pydict().items()}


def has_samples(folder: Path) -> bool:
    """Return True if the answers of a run are stored; a packed suite may have only records."""
    return (
        (folder / SAMPLES_FILE).exists()
        if (folder / RECORD_FILE).exists()
        else _packed_file(folder) is not None
    )


def read_samples(
    folder: Path, columns: Iterable[str] | None = None, record: RunRecord | None = None
) -> dict[str, list[Any]]:
    """Read columns of a run's samples by name; `None` for all, missing ones are left out.

    Raises:
        UserError: the samples are missing, are not Parquet, or do not match the record.
    """
    wanted = None if columns is None else list(columns)
    table = samples_table(folder, wanted)
    if table is None:
        fault = f"{folder} does not exist, or has a record without answers."
        raise UserError(fault, "Run the evaluation again with --force or another --out.")
    with reading_file(folder / SAMPLES_FILE, max_bytes=None):
        content: dict[str, list[Any]] = table.to_pydict()
    if record is not None:
        needed = [name for name in ("episode", "key") if wanted is None or name in wanted]
        if wanted is None and (folder / RECORD_FILE).exists():
            needed += record.sample_digests  # packed suites have fewer columns
        if wrong := _mismatch(content, record, needed):
            fault = f"The samples of run {record.id} in {folder} do not match its record: {wrong}."
            raise UserError(
                fault, "Restore both files, run again with --force, or remove the folder."
            )
    return content


def _mismatch(
    content: Mapping[str, Sequence[Any]], record: RunRecord, needed: Sequence[str]
) -> str:
    """Reason why these samples cannot belong to a record; "" if they match."""
    if missing := [name for name in needed if name not in content]:
        return f"the column {missing[0]} is missing"
    for name, values in content.items():
        if len(values) != record.n:
            return f"{len(values)} rows for {record.n} queries"
        if record.sample_digests.get(name) != column_digest(values):
            return f"the column {name} has other values"
    return ""


def samples_table(run: Path, columns: Iterable[str] | None = None) -> Any:
    """Read columns (`None` for all) of a run's samples as a `pyarrow.Table`; `None` if there are
    none.

    They are in the run's folder, else in the packed file of its suite.
    """
    if not (run / RECORD_FILE).exists():
        if (packed := _packed_file(run)) is None:
            return None
        import pyarrow.compute as pc

        file, known = packed
        names = [name for name in (known if columns is None else columns) if name in known]
        table = _columns(*file, tuple(names))
        return table.filter(pc.equal(table["run"], run.name)).select(names)
    if not (run / SAMPLES_FILE).exists():
        return None
    with open_parquet(
        run / SAMPLES_FILE, "Run again with --force.", max_bytes=MAX_SAMPLES_BYTES
    ) as (stored, _):
        # one run: threads cost more than they save
        return stored.read(columns=None if columns is None else list(columns), use_threads=False)


def _packed_file(run: Path) -> tuple[FileVersion, list[str]] | None:
    """The file with the samples of a packed run, and its columns there."""
    suite = run.parent
    if run.name in packed_runs(suite):
        for path in (
            [suite] if submission_file(run) else [suite / SAMPLES_FILE, suite / SCORES_FILE]
        ):
            file = file_version(path)
            if file[1] and (columns := _own_columns(*file).get(run.name)):
                return file, columns
    return None


@lru_cache(maxsize=64)
def _own_columns(path: Path, _version: tuple[int, ...]) -> dict[str, list[str]]:
    """Columns of each run of a file, by run."""
    with open_parquet(path, PACKED_REMEDY) as (file, _):
        table = file.read(columns=["run", "own_columns"])
        texts = dict(zip(text_column(table, "run"), text_column(table, "own_columns"), strict=True))
        columns_by_run = {run: text.split() for run, text in texts.items()}
        for run, columns in columns_by_run.items():
            refuse_duplicate_names(columns)
            if lost := set(columns) - set(file.schema_arrow.names):
                raise ValueError(f"the column {min(lost)!r:.60} of run {run:.60} is missing")
        return columns_by_run


@lru_cache(maxsize=4)
def _columns(path: Path, _version: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """Columns of all runs and their run ids; cached, because they are read run by run."""
    with open_parquet(path, PACKED_REMEDY) as (file, _):
        return file.read(columns=["run", *columns])
