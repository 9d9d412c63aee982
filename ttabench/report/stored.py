"""Options of stored runs, and their answers by query, which are the basis of paired tests.

non_default_options(record.config)   {"hierarchy": 16, "documents": 8}
describe_options(record)             "hierarchy=16, documents=8"

The queries of two runs are paired by their `QueryId`:

(0, "streamingqa/test/seed0", "q3", "4b1d02...")   digest of question and gold answers
(0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")

Samples without texts (`records.samples`) contain the same digests, so they are paired, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.declared import format_setting
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.pair import PAIR_SEPARATOR
from ttabench.methods.registry import find_installed, known_default_settings
from ttabench.readers.cards import load_card
from ttabench.readers.sources import default_options
from ttabench.records.run_fields import RunConfig
from ttabench.records.samples import digest_of, has_samples, is_digest, key_or_digest, read_samples
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import RESAMPLED_SOURCES, Draw, Observation, observation_of_query
from ttabench.stats.metrics import metric_or_default

StoredRun: TypeAlias = tuple[Path, RunRecord]
"""Folder and record of a run."""
QueryKey: TypeAlias = tuple[int, str, str]
"""(seed, episode, key) of a query."""
QueryId: TypeAlias = tuple[int, str, str, str]
"""(seed, episode, key, digest of the question or description of the scored text)."""
QUERY_COLUMNS = ("episode", "key", "prompt", "answers")
RATIO_COLUMNS = ("logprobs", "tokens", "words", "position")
OPTIONAL_COLUMNS = ("source_key", "subtask", "mode", "step")
"""Columns that samples of older versions may lack."""
QueryValues: TypeAlias = Mapping[QueryId, Observation]
"""Terms of the metric by query; the answer for a corpus metric, the scored text for a ratio."""
DEFAULT_CONFIG = RunConfig(method="").to_json()
LISTED_FIELDS = (
    "verb",
    "method",
    "task",
    "model",
    "source",
    "seed",
    "inputs",
    "state_of",
    "random_weights",
)
"""Fields with separate columns in `list runs`."""


class Answers(NamedTuple):
    """Answers of one or several runs."""

    values: QueryValues
    steps: Mapping[QueryKey, int]
    """Step of each query."""


def load_answers(run: StoredRun, metric: str) -> Answers | None:
    """Load the terms of a metric for every query of a run.

    None if samples are not stored; empty if they lack a column that the metric needs.
    """
    folder, record = run
    if not has_samples(folder):
        return None
    ratio = metric_or_default(metric).ratio is not None
    corpus = metric_or_default(metric).corpus is not None
    wanted = (*QUERY_COLUMNS, *(RATIO_COLUMNS if ratio else ("prediction" if corpus else metric,)))
    columns = read_samples(folder, [*wanted, *OPTIONAL_COLUMNS], record)
    values, steps = dict[QueryId, Observation](), dict[QueryKey, int]()
    if any(name not in columns for name in wanted):
        return Answers(values, steps)
    for name in {"episode", "key", "source_key"} & columns.keys():
        columns[name] = list(map(key_or_digest, columns[name]))
    blank = [""] * len(columns["key"])
    draw = Draw(record.unit, seed_of(record), is_fresh=record.source in RESAMPLED_SOURCES)
    base = " of ".join(base_identity(record))
    rows = zip(*(columns.get(name, blank) for name in (*OPTIONAL_COLUMNS, *wanted)), strict=True)
    for source_key, stratum, mode, step, episode, key, prompt, answers, *own in rows:
        question = _question_digest(prompt, tuple(answers)) if len(answers) else ""
        observation = observation_of_query(draw, episode, key, source_key, question)
        query_key = draw.seed, episode, key
        steps[query_key] = int(step or 0)
        if ratio:
            logprobs, tokens, words, position = own
            if len(logprobs):  # seeds differ in their texts
                scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
                values[*query_key, scored] = observation._replace(
                    terms=(-float(logprobs[0]), int(tokens[0]), int(words))
                )
        elif own[0] is not None and not (corpus and is_digest(answers[0])):
            terms = (own[0], answers[0], mode == "choose") if corpus else (float(own[0]), 1.0)
            values[*query_key, question] = observation._replace(terms=terms, stratum=stratum)
    return Answers(values, steps)


def join_answers(answers: Sequence[Answers | None]) -> Answers:
    """Join the answers of several runs, sorted by query; empty if one run has no samples."""
    kept = [run for run in answers if run is not None]
    if len(kept) < len(answers):
        return Answers({}, {})
    values = {query: value for run in kept for query, value in run.values.items()}
    assert len(values) == sum(len(run.values) for run in kept), (
        "two of these runs answer one query of one seed"
    )
    steps = {query_key: step for run in kept for query_key, step in run.steps.items()}
    return Answers({query: values[query] for query in sorted(values)}, steps)


def load_values(runs: Sequence[StoredRun], metric: str) -> QueryValues:
    """Load the terms of a metric for every query of several runs, sorted by query."""
    return join_answers([load_answers(run, metric) for run in runs]).values


@lru_cache(maxsize=100_000)
def _question_digest(prompt: str, answers: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(map(digest_of, (prompt, *answers))).encode()).hexdigest()[:16]


def base_identity(record: RunRecord) -> tuple[str, str]:
    """Return (fingerprint or else name of the base model, name of the tokenizer without folders)."""
    tokenizer = str(record.model.get("tokenizer"))
    return str(record.model.get("fingerprint") or record.base), tokenizer.rstrip("/").rpartition(
        "/"
    )[2]


def sample_cells(
    runs: Sequence[StoredRun], columns: Sequence[str]
) -> dict[QueryKey, dict[str, Any]]:
    """Load columns of samples by query, for the runs that have samples."""
    cells: dict[QueryKey, dict[str, Any]] = {}
    for folder, record in runs:
        stored = (
            read_samples(folder, ("episode", "key", *columns), record)
            if has_samples(folder)
            else {}
        )
        for row in (
            dict(zip(stored, values, strict=True)) for values in zip(*stored.values(), strict=True)
        ):
            cells[seed_of(record), key_or_digest(row["episode"]), key_or_digest(row["key"])] = row
    return cells


def seed_of(record: RunRecord) -> int:
    """Return the seed of a run."""
    return int(record.config.get("seed", 0))


# --- options of a run ---------------------------------------------------------------------------


def full_config(config: Mapping[str, Json]) -> RunConfig:
    """Return the configuration of a record, with the defaults of its installed method and task."""
    known = {field.name for field in fields(RunConfig)} - {"defaults"}
    values = {"method": "", **{key: value for key, value in config.items() if key in known}}
    return RunConfig(**values, defaults=_defaults(values))


def fill_defaults(config: Mapping[str, Json]) -> dict[str, Json]:
    """Add defaults for missing fields and drop unknown empty ones, because versions differ."""
    values = {
        **DEFAULT_CONFIG,
        **{
            key: value
            for key, value in config.items()
            if key in DEFAULT_CONFIG or value not in ("", None)
        },
    }
    return values | {name: {**known, **values[name]} for name, known in _defaults(values).items()}


def _defaults(config: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    method, task, source = (str(config.get(name)) for name in ("method", "task", "source"))
    return _known_defaults(method, str(config.get("inputs", {}).get("method", "")), task, source)


@lru_cache(maxsize=256)
def _known_defaults(
    method: str, origin: str, task: str, source: str
) -> dict[str, Mapping[str, Json]]:
    defaults: dict[str, Mapping[str, Json]] = {"settings": {}, "task_options": {}}
    with suppress(UserError):  # the method is not installed
        defaults["settings"] = known_default_settings(method, origin)
    with suppress(UserError):  # the card is not installed
        defaults["task_options"] = default_options(load_card(task), source)
    return defaults


def flatten_config(config: Mapping[str, Json]) -> dict[str, Json]:
    """Flatten settings and task options; an option with the name of a setting gets the prefix `task `."""
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    settings, options = config.get("settings", {}), config.get("task_options", {})
    return {
        **plain,
        **settings,
        **{f"task {key}" if key in settings else key: options[key] for key in options},
    }


def non_default_options(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the options that differ from their defaults, flattened, without `LISTED_FIELDS`."""
    return {
        key: value
        for key, value in flatten_config(full_config(config).non_default_values()).items()
        if key not in LISTED_FIELDS
    }


def describe_options(record: RunRecord) -> str:
    """Describe the non-default options: `preset book, budget=0.5`.

    Includes the preset, a checkpoint that is not bundled, and the word "untrained".
    """
    preset, checkpoint = (str(record.config.get(name) or "") for name in ("preset", "checkpoint"))
    words = [f"preset {preset}"] if preset else []
    words += [
        f"{key}={format_setting(value)}"
        for key, value in non_default_options(record.config).items()
        if key != "checkpoint"
    ]
    if checkpoint and not checkpoint.startswith("shipped:"):
        words.append(f"checkpoint={checkpoint.rstrip('/').rpartition('/')[2]}")
    if is_untrained(record):
        words.append("untrained")
    return ", ".join(words)


def is_untrained(record: RunRecord) -> bool:
    """Return True if a trainable method, or a trainable part of `A+B`, ran without a checkpoint."""
    config = record.config
    checkpoints = str(
        config.get("inputs", {}).get("checkpoint") or config.get("checkpoint") or ""
    ).split(PAIR_SEPARATOR)
    trainable = 1
    with suppress(UserError):  # the method is not installed
        spec = find_installed(str(config.get("method")))
        trainable = sum(part.trainable for part in getattr(spec, "parts", ())) or 1
    return bool(record.method.get("parameters")) and len([*filter(None, checkpoints)]) < trainable
