"""Samples and costs: one value for every answered query, one for every finished episode; and samples as a file.

A file of samples is written with its digests, which tie it to the record of its run, and read by column. Where texts
may not be passed on, a digest stands for each: two runs were asked the same where the digests of prompt and right
answers are the same, whichever still has its texts.
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
"""Samples of a packed suite without a text."""
MAX_SAMPLES_BYTES = 1 << 40
"""Bytes of a file of samples."""
PAGE_BYTES = 1 << 26
"""Bytes. Texts repeat from run to run: long pages, and a long look back, make the files several times smaller."""
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
"""Of a table of samples, beside one of numbers a metric: what a sample, its query, what this wants, or its answer has
by that name, 0 where none of them has it."""
NAME_COLUMNS = ("episode", "key", "source_key", "subtask")
"""Columns that name something; all other columns of texts are texts."""
MODES = frozenset({"choose", "generate", "score"})
DIGEST_DIGITS = 16
DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{16}")
KEY_PATTERN = re.compile(r"[A-Za-z0-9_.@/:+#-]{0,80}")
"""Keys that cannot be a sentence are kept: ids of rows as published, numbers, names of readers and orders."""


def query_to_store(ask: Query) -> Query:
    """A query as samples keep it: without the pieces of its window, and without the stretch of a book to score."""
    want = ask.want
    if isinstance(want, Score):
        want = replace(
            want, continuation="" if want.ids else want.continuation, ids=(), prompt_ids=()
        )
    return replace(ask, window=(), want=want)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answered query."""

    episode: str
    ask: Query
    """As `kept`."""
    answer: Answer
    metrics: dict[str, float]
    context_tokens: int | None
    """Tokens that its reader had read."""
    ask_ms: float
    """Its share of the batch it was answered in."""
    ask_cpu_ms: float | None = None
    """The same of the processor; None where it was not measured."""
    patch_bytes: int = 0
    """Largest patch of its episode so far."""
    read_slots: int = 0
    """Most keys and values of context, in tokens, that one query of its episode read so far."""

    @property
    def key(self) -> str:
        """Of the query."""
        return self.ask.key

    @property
    def step(self) -> int:
        """Where in the stream the query was asked, see `types.At`."""
        return self.ask.at.count

    def answers_query(self, ask: Query, metrics: Collection[str]) -> bool:
        """Whether it can be an answer to this query: it was asked the same, and the figures needed are there."""
        has_scores = ask.mode == "choose" or bool(self.answer.logprobs and self.answer.tokens)
        return (
            self.ask == query_to_store(ask) and has_scores and self.metrics.keys() == set(metrics)
        )

    def to_row(self) -> dict[str, Json]:
        """One level of columns: the metrics beside the rest."""
        assert not set(self.metrics) & set(SAMPLE_COLUMNS), "a metric is named like a column"
        levels = (self, self.ask, self.ask.want, self.answer)
        cells = {
            name: next((getattr(e, name) for e in levels if hasattr(e, name)), 0)
            for name in SAMPLE_COLUMNS
        }
        row = {
            name: list(cell) if isinstance(cell, tuple) else cell for name, cell in cells.items()
        }
        return {**row, **self.metrics}


@dataclass(frozen=True, kw_only=True)
class EpisodeCost:
    """The cost of one finished episode: seconds, bytes, counts; bytes are peaks."""

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
    """Of a method with a budget: what it kept, in keys and values of one token, and what full context keeps (tokens
    read, with what begins a text)."""
    truncated: dict[str, int] = field(default_factory=dict)
    """Context that the method could not read, by its own counts ("truncated_tokens" ...)."""
    adapt_cpu_seconds: float | None = None
    """Of the processor, reading and encoding; None where it was not measured."""


@lru_cache(maxsize=100_000)
def digest_of(text: str) -> str:
    """The digest of a text; empty for an empty text, and a digest is its own."""
    if not text or is_digest(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGEST_DIGITS]}"


def is_digest(text: str) -> bool:
    """Whether a digest stands here for a text that is not kept."""
    return DIGEST_PATTERN.fullmatch(text) is not None


def text_or_empty(text: str) -> str:
    """The text, or nothing where only its digest is kept."""
    return "" if is_digest(text) else text


def key_or_digest(key: str) -> str:
    """A key as samples without texts have it."""
    return key if KEY_PATTERN.fullmatch(key) else digest_of(key)


def without_texts(table: Any, subtasks: Collection[str]) -> Any:
    """A `pyarrow.Table` of samples with every text as its digest; names of modes and of these sub-tasks stay."""
    import pyarrow as pa

    kept = {"mode": MODES, "subtask": subtasks}

    def strip_texts(name: str, value: Json) -> Json:
        if isinstance(value, list):
            return [strip_texts(name, part) for part in value]
        if isinstance(value, str) and value not in kept.get(name, ()):
            return key_or_digest(value) if name in NAME_COLUMNS else digest_of(value)
        assert value is None or isinstance(value, str | int | float), f"a text may stand in {name}"
        return value

    cells = (
        [strip_texts(field.name, value) for value in table[field.name].to_pylist()]
        for field in table.schema
    )
    return pa.table(
        [pa.array(own, type=field.type) for own, field in zip(cells, table.schema, strict=True)],
        names=table.column_names,
    )


def column_digest(values: Sequence[Json]) -> str:
    """Digest of the values of a column, in order; a text counts by its digest, so it holds without texts, too."""
    text = json.dumps(
        [_with_digests(value) for value in values], default=repr
    )  # what is no JSON is of no record
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def _with_digests(value: Json) -> Json:
    if isinstance(value, list):
        return [_with_digests(part) for part in value]
    return digest_of(value) if isinstance(value, str) else value


def store_table(path: Path, table: Any, ours: Callable[[Path], bool] | None = None) -> None:
    """Write a `pyarrow.Table` as Parquet, whole or not at all; `is_ours`: see `files.replacing`."""
    import pyarrow.parquet as pq

    try:
        with replace_atomically(path, is_ours=ours) as scratch:
            options = {"compression": "zstd", "compression_level": 19, "data_page_size": PAGE_BYTES}
            pq.write_table(table.combine_chunks(), scratch, **options)
    except OSError as error:
        raise unwritable_error(path.parent, error) from None


def write_samples(path: Path, samples: Sequence[Mapping[str, Json]]) -> dict[str, str]:
    """Write samples as Parquet, atomically; every sample has the same keys. Returns the digest of every column."""
    import pyarrow as pa

    table = pa.Table.from_pylist([dict(sample) for sample in samples])
    store_table(path, table)
    return {name: column_digest(values) for name, values in table.to_pydict().items()}


def has_samples(folder: Path) -> bool:
    """Whether the answers of a run were kept: a packed suite may hold records alone."""
    return (
        (folder / SAMPLES_FILE).exists()
        if (folder / RECORD_FILE).exists()
        else _packed_file(folder) is not None
    )


def read_samples(
    folder: Path, columns: Iterable[str] | None = None, record: RunRecord | None = None
) -> dict[str, list[Any]]:
    """Columns of a run's samples (all for None; those that are missing are left out), called as `Sample` calls them.

    Raises:
        UserError: no samples there, a file that is not Parquet, or samples that are not those of the record.
    """
    wanted = None if columns is None else list(columns)
    table = samples_table(folder, wanted)
    if table is None:
        fault = f"{folder} does not exist, or holds a record and not its answers."
        raise UserError(fault, "Run the evaluation again with --force, or another --out.")
    with reading_file(folder / SAMPLES_FILE, max_bytes=None):
        content: dict[str, list[Any]] = table.to_pydict()
    if record is not None:
        needed = [name for name in ("episode", "key") if wanted is None or name in wanted]
        if wanted is None and (folder / RECORD_FILE).exists():
            needed += record.sample_digests  # suites that are packed keep fewer
        if wrong := _mismatch(content, record, needed):
            fault = (
                f"The samples of run {record.id} in {folder} are not those of its record: {wrong}."
            )
            raise UserError(
                fault, "Restore both files, run again with --force, or remove the folder."
            )
    return content


def _mismatch(
    content: Mapping[str, Sequence[Any]], record: RunRecord, needed: Sequence[str]
) -> str:
    """Why these cannot be the samples of a record, in a few words; "" where they can."""
    if missing := [name for name in needed if name not in content]:
        return f"the column {missing[0]} is missing"
    for name, values in content.items():
        if len(values) != record.n:
            return f"{len(values)} rows for {record.n} queries"
        if record.sample_digests.get(name) != column_digest(values):
            return f"the column {name} has other values"
    return ""


def samples_table(run: Path, columns: Iterable[str] | None = None) -> Any:
    """Columns (all for None) of the samples of a run as a `pyarrow.Table`, of its folder where it has one, else as they
    are packed; None where there are none."""
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
        return stored.read(columns=None if columns is None else list(columns))


def _packed_file(run: Path) -> tuple[FileVersion, list[str]] | None:
    """The file that has the samples of a packed run, and its columns there."""
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
    """The columns that each run of a file has, by run."""
    with open_parquet(path, PACKED_REMEDY) as (file, _):
        table = file.read(columns=["run", "own_columns"])
        texts = dict(zip(text_column(table, "run"), text_column(table, "own_columns"), strict=True))
        columns_by_run = {run: text.split() for run, text in texts.items()}
        for run, columns in columns_by_run.items():
            refuse_duplicate_names(columns)
            if lost := set(columns) - set(file.schema_arrow.names):
                raise ValueError(
                    f"run {run:.60} has a column {min(lost)!r:.60}, which is not there"
                )
        return columns_by_run


@lru_cache(maxsize=4)
def _columns(path: Path, _version: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """Columns of all runs, and whose they are: they are asked for run by run."""
    with open_parquet(path, PACKED_REMEDY) as (file, _):
        return file.read(columns=["run", *columns])
