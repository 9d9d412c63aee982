"""What two groups of runs both answered, paired: values of queries, or scored stretches where the metric is a ratio.

    (0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")
    (0, "streamingqa/test/seed0", "q3", "4b1d02...")         a digest of question and right answers

Two runs may cut one text at the same places into other stretches (strides of 512 and of 256), and two tokenizers count
other tokens: only what is the same stretch for the same base model and tokenizer is paired. Two streams may give one
key to different questions: only what is asked in the same words, with the same right answers, is paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ttabench.records.schema import RunRecord, load_record, read_samples
from ttabench.stats.aggregation import Kind, Unit
from ttabench.stats.estimate import Observed, single
from ttabench.stats.metrics import METRICS
from ttabench.stats.texts import Written
from ttabench.stats.varying import cluster

Query = tuple[int, str, str, str]
"""(seed, episode, key, what was scored by which base, or asked): two runs are paired by it."""
OPTIONAL = ("source_key", "subtask")
"""Columns that samples of earlier versions may lack."""
Values: TypeAlias = Mapping[Query, Observed | Written] | Mapping[Query, Unit]
"""The metric of every query, or its answer; of a ratio, what was scored."""


def kind_of(metric: str) -> Kind | None:
    """What a metric is where it is no plain mean."""
    return METRICS[metric].kind if metric in METRICS else None


def answered(folders: Sequence[Path], metric: str) -> Values:
    """What every query of these runs adds to a metric."""
    known = METRICS.get(metric)
    if known is not None and known.ratio is not None:
        return _units(folders)
    corpus = known is not None and known.corpus is not None
    values: dict[Query, Observed | Written] = {}
    for folder in folders:
        record = load_record(folder)
        for (seed, episode, key, _), (value, prompt, answers, source_key, subtask) in _samples(
            folder, record, ("prediction" if corpus else metric, "prompt", "answers", "source_key", "subtask")
        ):
            if value is not None:
                text = cluster(record.unit, _drawn(record), episode, key, source_key)
                asked = repr((prompt, list(answers))).encode()
                query = (seed, episode, key, hashlib.sha256(asked).hexdigest()[:16])
                own = Written(text, value, answers[0], subtask) if corpus else single(text, float(value), subtask)
                values[query] = own
    return values


def _units(folders: Sequence[Path]) -> dict[Query, Unit]:
    """Scored stretches; texts of different seeds are different texts."""
    found: dict[Query, Unit] = {}
    for folder in folders:
        record = load_record(folder)
        base = f"{record.model.get('fingerprint')} of {record.model.get('tokenizer')}"
        wanted = ("logprobs", "tokens", "words", "position", "source_key")
        for (seed, episode, key, _), (logprobs, tokens, words, position, source_key) in _samples(
            folder, record, wanted
        ):
            if not len(logprobs):
                continue
            scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
            text = cluster(record.unit, _drawn(record), episode, key, source_key)
            unit = Unit(text, -float(logprobs[0]), int(tokens[0]), int(words))
            found[seed, episode, key, scored] = unit
    return found


def steps_of(folders: Sequence[Path]) -> dict[tuple[int, str, str], int]:
    """How much each query's reader had read: its step, by seed, episode and key."""
    found = {}
    for folder in folders:
        for query, (step,) in _samples(folder, load_record(folder), ("step",)):
            found[query[:3]] = int(step)
    return found


def _drawn(record: RunRecord) -> int | str:
    """The seed, where it draws rows or demonstrations; published rows are the same under every seed."""
    return int(record.config.get("seed", 0)) if record.source == "mini" or record.unit == "draw" else ""


def _samples(folder: Path, record: RunRecord, wanted: Sequence[str]) -> Iterator[tuple[Query, tuple[Any, ...]]]:
    seed = int(record.config.get("seed", 0))
    columns = read_samples(folder, ["episode", "key", *wanted])
    if all(name in columns for name in wanted if name not in OPTIONAL):
        named = zip(columns["episode"], columns["key"], strict=True)
        blank = [""] * len(columns["key"])
        cells = zip(*(columns.get(name, blank) for name in wanted), strict=True)
        for (episode, key), values in zip(named, cells, strict=True):
            yield (seed, episode, key, ""), values
