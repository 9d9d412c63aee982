"""What stored runs were told (all of it, and what of it is no default), and what they answered, by query, so that two
runs can be paired: terms of the metric, or scored stretches of a ratio.

    changes(record.config)              {"hierarchy": 16, "documents": 8}
    told(record)                        "hierarchy=16, documents=8"

    (0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")
    (0, "streamingqa/test/seed0", "q3", "4b1d02...")         a digest of question and right answers

Samples without texts (`records.samples`) are paired by the digests of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.declared import as_typed
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.pair import SIGN
from ttabench.methods.registry import find_installed, known_settings
from ttabench.readers.cards import load_card
from ttabench.readers.sources import defaults as task_defaults
from ttabench.records.run_fields import RunConfig
from ttabench.records.samples import digest_of, has_samples, is_digest, name_of, read_samples
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import FRESH, Draw, Observed, origin
from ttabench.stats.metrics import known

Run: TypeAlias = tuple[Path, RunRecord]
"""The folder of a run, and its record."""
Place: TypeAlias = tuple[int, str, str]
"""(seed, episode, key) of a query."""
Query: TypeAlias = tuple[int, str, str, str]
"""(seed, episode, key, what was scored by which base, or asked): two runs are paired by it."""
ASKED = ("episode", "key", "prompt", "answers")
SCORED = ("logprobs", "tokens", "words", "position")
OPTIONAL = ("source_key", "subtask", "mode", "step")
"""Columns that samples of earlier versions may lack."""
Values: TypeAlias = Mapping[Query, Observed]
"""The metric of every query, or its answer; of a ratio, what was scored."""
PLAIN = RunConfig(method="").to_json()
NAMED = ("verb", "method", "task", "model", "source", "seed", "inputs", "state_of", "random_weights")
"""Fields that a line of a list shows in columns of their own."""


class Answers(NamedTuple):
    """Answers of runs."""

    values: Values
    steps: Mapping[Place, int]
    """Where in the stream each was asked."""


def answers_of(run: Run, metric: str) -> Answers | None:
    """What every query of a run adds to a metric. None where its samples are not kept, nothing where they lack a column
    that the metric takes."""
    folder, record = run
    if not has_samples(folder):
        return None
    ratio, corpus = known(metric).ratio is not None, known(metric).corpus is not None
    wanted = (*ASKED, *(SCORED if ratio else ("prediction" if corpus else metric,)))
    columns = read_samples(folder, [*wanted, *OPTIONAL], record)
    values, steps = dict[Query, Observed](), dict[Place, int]()
    if any(name not in columns for name in wanted):
        return Answers(values, steps)
    for name in {"episode", "key", "source_key"} & columns.keys():
        columns[name] = list(map(name_of, columns[name]))
    blank = [""] * len(columns["key"])
    draw, base = Draw(record.unit, seed_of(record), fresh=record.source in FRESH), " of ".join(base_of(record))
    rows = zip(*(columns.get(name, blank) for name in (*OPTIONAL, *wanted)), strict=True)
    for source_key, stratum, mode, step, episode, key, prompt, answers, *own in rows:
        question = _asked(prompt, tuple(answers)) if len(answers) else ""
        asked = origin(draw, episode, key, source_key, question)
        place = draw.seed, episode, key
        steps[place] = int(step or 0)
        if ratio:
            logprobs, tokens, words, position = own
            if len(logprobs):  # texts of different seeds are different texts
                scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
                values[*place, scored] = asked._replace(terms=(-float(logprobs[0]), int(tokens[0]), int(words)))
        elif own[0] is not None and not (corpus and is_digest(answers[0])):
            terms = (own[0], answers[0], mode == "choose") if corpus else (float(own[0]), 1.0)
            values[*place, question] = asked._replace(terms=terms, stratum=stratum)
    return Answers(values, steps)


def joined(answers: Sequence[Answers | None]) -> Answers:
    """Of several runs, queries in order; nothing where one of them kept no answers."""
    kept = [run for run in answers if run is not None]
    if len(kept) < len(answers):
        return Answers({}, {})
    values = {query: value for run in kept for query, value in run.values.items()}
    assert len(values) == sum(len(run.values) for run in kept), "two of these runs answer one query of one seed"
    steps = {place: step for run in kept for place, step in run.steps.items()}
    return Answers({query: values[query] for query in sorted(values)}, steps)


def answered(runs: Sequence[Run], metric: str) -> Values:
    """What every query of several runs adds to a metric, in order."""
    return joined([answers_of(run, metric) for run in runs]).values


@lru_cache(maxsize=100_000)
def _asked(prompt: str, answers: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(map(digest_of, (prompt, *answers))).encode()).hexdigest()[:16]


def base_of(record: RunRecord) -> tuple[str, str]:
    """(fingerprint of the base's weights, or its name where there is none, its tokenizer, wherever that lies)."""
    tokenizer = str(record.model.get("tokenizer"))
    return str(record.model.get("fingerprint") or record.base), tokenizer.rstrip("/").rpartition("/")[2]


def cells_of(runs: Sequence[Run], columns: Sequence[str]) -> dict[Place, dict[str, Any]]:
    """These columns of samples, of runs that keep any."""
    cells: dict[Place, dict[str, Any]] = {}
    for folder, record in runs:
        stored = read_samples(folder, ("episode", "key", *columns), record) if has_samples(folder) else {}
        for row in (dict(zip(stored, values, strict=True)) for values in zip(*stored.values(), strict=True)):
            cells[seed_of(record), name_of(row["episode"]), name_of(row["key"])] = row
    return cells


def seed_of(record: RunRecord) -> int:
    """The seed of a run."""
    return int(record.config.get("seed", 0))


# --- what a run was told --------------------------------------------------------------------------------------------


def whole(config: Mapping[str, Json]) -> RunConfig:
    """The configuration of a record with the defaults it is held against, as far as method and task are here."""
    known = {field.name for field in fields(RunConfig)} - {"defaults"}
    values = {"method": "", **{key: value for key, value in config.items() if key in known}}
    return RunConfig(**values, defaults=_defaults(values))


def with_defaults(config: Mapping[str, Json]) -> dict[str, Json]:
    """A configuration and the defaults of what it does not name: earlier versions knew fewer fields, and others, which
    say nothing where they are empty."""
    values = {**PLAIN, **{key: value for key, value in config.items() if key in PLAIN or value not in ("", None)}}
    return values | {name: {**known, **values[name]} for name, known in _defaults(values).items()}


def _defaults(config: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    method, task, source = (str(config.get(name)) for name in ("method", "task", "source"))
    return _known(method, str(config.get("inputs", {}).get("method", "")), task, source)


@lru_cache(maxsize=256)
def _known(method: str, origin: str, task: str, source: str) -> dict[str, Mapping[str, Json]]:
    defaults: dict[str, Mapping[str, Json]] = {"settings": {}, "task_options": {}}
    with suppress(UserError):  # a method that is not here
        defaults["settings"] = known_settings(method, origin)
    with suppress(UserError):  # a card that is not here
        defaults["task_options"] = task_defaults(load_card(task), source)
    return defaults


def flat(config: Mapping[str, Json]) -> dict[str, Json]:
    """Settings and task options beside all else; where both have a name, the task's is said to be the task's."""
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    settings, options = config.get("settings", {}), config.get("task_options", {})
    return {**plain, **settings, **{f"task {key}" if key in settings else key: options[key] for key in options}}


def changes(config: Mapping[str, Json]) -> dict[str, Json]:
    """Options that are no defaults, in one level, digests of files and names of the run aside."""
    return {key: value for key, value in flat(whole(config).differing()).items() if key not in NAMED}


def told(record: RunRecord) -> str:
    """Options that are no defaults, presets and checkpoints that do not ship included: `preset book, budget=0.5`."""
    preset, checkpoint = (str(record.config.get(name) or "") for name in ("preset", "checkpoint"))
    words = [f"preset {preset}"] * bool(preset)
    words += [f"{key}={as_typed(value)}" for key, value in changes(record.config).items() if key != "checkpoint"]
    if checkpoint and not checkpoint.startswith("shipped:"):
        words.append(f"checkpoint={checkpoint.rstrip('/').rpartition('/')[2]}")
    return ", ".join([*words, *["untrained"] * is_untrained(record)])


def is_untrained(record: RunRecord) -> bool:
    """Whether a method with trainable parameters, or such a part of `A+B`, ran without a checkpoint."""
    config = record.config
    checkpoints = str(config.get("inputs", {}).get("checkpoint") or config.get("checkpoint") or "").split(SIGN)
    trainable = 1
    with suppress(UserError):  # a method that is not here
        spec = find_installed(str(config.get("method")))
        trainable = sum(part.trainable for part in getattr(spec, "parts", ())) or 1
    return bool(record.method.get("parameters")) and len([*filter(None, checkpoints)]) < trainable
