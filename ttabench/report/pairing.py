"""What two groups of runs both answered, paired: values of queries, or scored stretches where the metric is a ratio.

    (0, "pg19/test/718", "718@1024", "512 tokens and 391 words from 1024 on, by 9f3c... of gpt2")

Two runs may cut one text at the same places into other stretches (strides of 512 and of 256), and two tokenizers count
other tokens: only what is the same stretch for the same base model and tokenizer is paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttabench.records.schema import load_record, read_samples
from ttabench.stats.aggregation import Ratio, Unit, groups, of_units
from ttabench.stats.bootstrap import paired_bootstrap, paired_ratios
from ttabench.stats.metrics import METRICS

Query = tuple[int, str, str, str]
"""(seed, episode, key, what was scored and by which base, "" where no text was): two runs are paired by it."""
Values = Mapping[Query, float] | Mapping[Query, Unit]
"""The metric of every query; of a ratio, what was scored."""
Interval = tuple[float, float, float]
"""(low, high, p) of a difference."""


def ratio_of(metric: str) -> Ratio | None:
    """What a metric is a ratio of, where it is no plain mean."""
    return METRICS[metric].ratio if metric in METRICS else None


def answered(folders: Sequence[Path], metric: str) -> Values:
    """The metric of every query of these runs."""
    if ratio_of(metric) is not None:
        return _units(folders)
    values: dict[Query, float] = {}
    for folder in folders:
        for query, (value,) in _samples(folder, (metric,)):
            if value is not None:
                values[query] = float(value)
    return values


def _units(folders: Sequence[Path]) -> dict[Query, Unit]:
    """Scored stretches; texts of different seeds are different texts."""
    found: dict[Query, Unit] = {}
    for folder in folders:
        model = load_record(folder).model
        base = f"{model.get('fingerprint')} of {model.get('tokenizer')}"
        wanted = ("mode", "logprobs", "tokens", "words", "position")
        for (seed, episode, key, _), (mode, logprobs, tokens, words, position) in _samples(folder, wanted):
            if not len(logprobs):
                continue
            scored = f"{tokens[0]} tokens and {words} words from {position} on, by {base}"
            text = f"{seed} {episode}" if mode == "score" else f"{seed} {episode} {key}"
            unit = Unit(text, -float(logprobs[0]), int(tokens[0]), int(words))
            found[seed, episode, key, scored] = unit
    return found


def _samples(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[Query, tuple[Any, ...]]]:
    seed = int(load_record(folder).config.get("seed", 0))
    columns = read_samples(folder, ["episode", "key", *wanted])
    if all(name in columns for name in wanted):
        named = zip(columns["episode"], columns["key"], strict=True)
        cells = zip(*(columns[name] for name in wanted), strict=True)
        for (episode, key), values in zip(named, cells, strict=True):
            yield (seed, episode, key, ""), values


def paired_difference(
    ratio: Ratio | None, sides: Sequence[Sequence[Any]], resamples: int, seed: int
) -> tuple[float, Interval | None] | None:
    """(difference, its interval) of paired values or units; None where a figure is no number.

    One query, or one text where the figure is a mean over texts, shows no interval: every draw is the same.
    """
    if ratio is None:
        differences = np.subtract(*(np.array(side, dtype=np.float64) for side in sides))
        several = len(differences) > 1
        return float(differences.mean()), paired_bootstrap(differences, resamples, seed) if several else None
    whole = [of_units(ratio, side) for side in sides]
    pairs = [groups(ratio, side) for side in sides]
    if whole[0] is None or whole[1] is None:
        return None
    left, right = (np.array(side, dtype=np.float64) for side in pairs)
    value = whole[0].mean - whole[1].mean
    if len(left) < 2:
        return value, None
    return value, paired_ratios(left, right, exponential=ratio.outer, resamples=resamples, seed=seed)
