"""What two groups of runs both answered, paired: values of queries, or scored stretches where the metric is a ratio.

    (0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")
    (0, "streamingqa/test/seed0", "q3", "4b1d02...")         a digest of question and right answers

Two runs may cut one text at the same places into other stretches (strides of 512 and of 256), and two tokenizers count
other tokens: only what is the same stretch for the same base model and tokenizer is paired. Two streams may give one
key to different questions: only what is asked in the same words, with the same right answers, is paired. Samples
without texts (`records.scores`) are paired by the digests of these, which other draws of the same question share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.records.sample_files import read_samples
from ttabench.records.schema import RunRecord
from ttabench.records.scores import digest_of, is_digest, kept_text, name_of
from ttabench.stats.aggregation import Kind, Unit
from ttabench.stats.clusters import Observed
from ttabench.stats.metrics import METRICS
from ttabench.stats.texts import Written
from ttabench.stats.varying import Draw, origin

Run: TypeAlias = tuple[Path, RunRecord]
"""The folder of a run, and its record."""
Place: TypeAlias = tuple[int, str, str]
"""(seed, episode, key) of a query."""
Query: TypeAlias = tuple[int, str, str, str]
"""(seed, episode, key, what was scored by which base, or asked): two runs are paired by it."""
OPTIONAL = ("source_key", "subtask", "mode")
"""Columns that samples of earlier versions may lack."""
NAMES = {"episode", "key", "source_key"}
Values: TypeAlias = Mapping[Query, Observed | Written] | Mapping[Query, Unit]
"""The metric of every query, or its answer; of a ratio, what was scored."""


def kind_of(metric: str) -> Kind | None:
    """The ratio or corpus of a metric that is no plain mean."""
    return METRICS[metric].kind if metric in METRICS else None


def answered(runs: Sequence[Run], metric: str) -> Values:
    """What every query of these runs adds to a metric; nothing of a run whose samples lack a column it takes.

    Queries are in order.

    Raises:
        UserError: samples that are missing or damaged.
    """
    known = METRICS.get(metric)
    if known is not None and known.ratio is not None:
        return _units(runs)
    corpus = known is not None and known.corpus is not None
    wanted = ("prediction" if corpus else metric, "prompt", "answers", "source_key", "subtask", "mode")
    values: dict[Query, Observed | Written] = {}
    for folder, record in runs:
        draw = _draw(record)
        for episode, key, value, prompt, answers, source_key, subtask, mode in _samples((folder, record), wanted):
            if value is not None and not (corpus and is_digest(answers[0])):
                question = _asked(prompt, tuple(answers))
                text, across, same = origin(draw, episode, key, source_key, question)
                values[draw.seed, episode, key, question] = (
                    Written(text, value, answers[0], subtask, across, same, mode == "choose")
                    if corpus
                    else Observed(text, (float(value), 1.0), subtask, across, same)
                )
    return {query: values[query] for query in sorted(values)}


@lru_cache(maxsize=100_000)
def _asked(prompt: str, answers: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(map(digest_of, (prompt, *answers))).encode()).hexdigest()[:16]


def _units(runs: Sequence[Run]) -> dict[Query, Unit]:
    """Scored stretches; texts of different seeds are different texts."""
    units: dict[Query, Unit] = {}
    wanted = ("logprobs", "tokens", "words", "position", "source_key", "prompt", "answers")
    for folder, record in runs:
        base = " of ".join(base_of(record))
        draw = _draw(record)
        for episode, key, logprobs, tokens, words, position, source_key, *asked in _samples((folder, record), wanted):
            if not len(logprobs):
                continue
            scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
            prompt, answers = asked
            question = _asked(prompt, tuple(answers)) if len(answers) else ""
            text, *others = origin(draw, episode, key, source_key, question)
            own = Unit(text, -float(logprobs[0]), int(tokens[0]), int(words), *others)
            units[draw.seed, episode, key, scored] = own
    return {query: units[query] for query in sorted(units)}


def base_of(record: RunRecord) -> tuple[str, str]:
    """(fingerprint of the base's weights, or its name where there is none, its tokenizer, wherever that lies)."""
    tokenizer = str(record.model.get("tokenizer"))
    return str(record.model.get("fingerprint") or record.base), tokenizer.rstrip("/").rpartition("/")[2]


def steps_of(runs: Sequence[Run]) -> dict[Place, int]:
    """How much each query's reader had read: its step, by seed, episode and key."""
    return {
        (_seed(record), episode, key): int(step)
        for folder, record in runs
        for episode, key, step in _samples((folder, record), ("step",))
    }


def texts_of(runs: Sequence[Run]) -> dict[Place, tuple[str, tuple[str, ...], str]]:
    """(prompt, right answers, prediction) by seed, episode and key, of samples that hold them; "" of a digest."""
    return {
        (_seed(record), episode, key): (kept_text(prompt), tuple(map(kept_text, answers)), kept_text(prediction))
        for folder, record in runs
        for episode, key, prompt, answers, prediction in _samples((folder, record), ("prompt", "answers", "prediction"))
    }


def _seed(record: RunRecord) -> int:
    return int(record.config.get("seed", 0))


def _draw(record: RunRecord) -> Draw:
    return Draw(record.unit, _seed(record), fresh=record.source == "mini")


def _samples(run: Run, wanted: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """(episode, key, what is wanted ...) of every sample, names as `name_of`; none where a column is missing."""
    columns = read_samples(run[0], ["episode", "key", *wanted], run[1])
    if any(name not in columns for name in wanted if name not in OPTIONAL):
        return ()
    blank = [""] * len(columns["key"])
    for name in NAMES & columns.keys():
        columns[name] = [name_of(key) for key in columns[name]]
    return zip(columns["episode"], columns["key"], *(columns.get(name, blank) for name in wanted), strict=True)
