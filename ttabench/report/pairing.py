"""What runs answered, by query, so that two runs can be paired: terms of the metric, or scored stretches of a ratio.

    (0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")
    (0, "streamingqa/test/seed0", "q3", "4b1d02...")         a digest of question and right answers

Samples without texts (`records.samples`) are paired by the digests of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ttabench.core.errors import UserError
from ttabench.records.samples import digest_of, has_samples, is_digest, name_of, read_samples
from ttabench.records.schema import RunRecord
from ttabench.stats.clusters import Observed
from ttabench.stats.figures import Unit, Written
from ttabench.stats.metrics import known
from ttabench.stats.varying import FRESH, Draw, origin

Run: TypeAlias = tuple[Path, RunRecord]
"""The folder of a run, and its record."""
Place: TypeAlias = tuple[int, str, str]
"""(seed, episode, key) of a query."""
Query: TypeAlias = tuple[int, str, str, str]
"""(seed, episode, key, what was scored by which base, or asked): two runs are paired by it."""
ASKED = ("prompt", "answers", "source_key", "subtask", "mode")
SCORED = ("logprobs", "tokens", "words", "position")
OPTIONAL = ("source_key", "subtask", "mode")
"""Columns that samples of earlier versions may lack."""
NAMES = {"episode", "key", "source_key"}
Values: TypeAlias = Mapping[Query, Observed | Written] | Mapping[Query, Unit]
"""The metric of every query, or its answer; of a ratio, what was scored."""


class Answers(NamedTuple):
    """Answers of runs."""

    values: Values
    steps: Mapping[Place, int]
    """Where in the stream each was asked; nothing of runs that have no figures by step."""


def answers_of(runs: Sequence[Run], metric: str) -> tuple[dict[str, Answers | None], list[str]]:
    """(answers of each run by its id, None where none are kept; a line for every run whose samples are damaged). The
    metric is each run's main one for ""."""
    answers: dict[str, Answers | None] = {}
    damaged = []
    for run in runs:
        folder, record = run
        stepwise = any(row.step is not None for row in record.rows)
        try:
            answers[record.id] = (
                Answers(answered([run], metric or record.main_metric), steps_of([run]) if stepwise else {})
                if has_samples(folder)
                else None
            )
        except UserError as error:
            damaged.append(str(error))
        except (IndexError, TypeError):
            damaged.append(f"The samples of run {record.id} in {folder} are not those of queries.")
    return answers, damaged


def joined(answers: Sequence[Answers | None]) -> Answers:
    """Of several runs, queries in order; nothing where one of them kept no answers."""
    kept = [run for run in answers if run is not None]
    if len(kept) < len(answers):
        return Answers({}, {})
    values: dict[Any, Any] = {query: value for run in kept for query, value in run.values.items()}
    steps = {place: step for run in kept for place, step in run.steps.items()}
    return Answers({query: values[query] for query in sorted(values)}, steps)


def answered(runs: Sequence[Run], metric: str) -> Values:
    """What every query adds to a metric, in order; nothing of a run whose samples lack a column that it takes."""
    ratio, corpus = known(metric).ratio is not None, known(metric).corpus is not None
    wanted = SCORED if ratio else ("prediction" if corpus else metric,)
    values: dict[Query, Any] = {}
    for run in runs:
        draw = Draw(run[1].unit, seed_of(run[1]), fresh=run[1].source in FRESH)
        base = " of ".join(base_of(run[1]))
        for episode, key, prompt, answers, source_key, stratum, mode, *own in _samples(run, (*ASKED, *wanted)):
            question = _asked(prompt, tuple(answers)) if len(answers) else ""
            text, across, same = origin(draw, episode, key, source_key, question)
            place = draw.seed, episode, key
            if ratio:
                logprobs, tokens, words, position = own
                if len(logprobs):  # texts of different seeds are different texts
                    scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
                    values[*place, scored] = Unit(text, -float(logprobs[0]), int(tokens[0]), int(words), across, same)
            elif corpus and own[0] is not None and not is_digest(answers[0]):
                written = Written(text, own[0], answers[0], stratum, across, same, mode == "choose")
                values[*place, question] = written
            elif not corpus and own[0] is not None:
                values[*place, question] = Observed(text, (float(own[0]), 1.0), stratum, across, same)
    return {query: values[query] for query in sorted(values)}


@lru_cache(maxsize=100_000)
def _asked(prompt: str, answers: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(map(digest_of, (prompt, *answers))).encode()).hexdigest()[:16]


def base_of(record: RunRecord) -> tuple[str, str]:
    """(fingerprint of the base's weights, or its name where there is none, its tokenizer, wherever that lies)."""
    tokenizer = str(record.model.get("tokenizer"))
    return str(record.model.get("fingerprint") or record.base), tokenizer.rstrip("/").rpartition("/")[2]


def steps_of(runs: Sequence[Run]) -> dict[Place, int]:
    """How much each query's reader had read: its step."""
    return {
        (seed_of(run[1]), episode, key): int(step) for run in runs for episode, key, step in _samples(run, ("step",))
    }


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


def _samples(run: Run, wanted: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """(episode, key, what is wanted ...) of every sample, names as `name_of`; none where a column is missing."""
    columns = read_samples(run[0], ["episode", "key", *wanted], run[1])
    if any(name not in columns for name in wanted if name not in OPTIONAL):
        return ()
    blank = [""] * len(columns["key"])
    for name in NAMES & columns.keys():
        columns[name] = [name_of(key) for key in columns[name]]
    return zip(columns["episode"], columns["key"], *(columns.get(name, blank) for name in wanted), strict=True)
