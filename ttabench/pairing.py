"""What two groups of runs both answered, paired: values of queries, or scored stretches where the metric is a ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttabench.aggregation import Ratio, Unit, groups, of_units
from ttabench.bootstrap import paired_bootstrap, paired_ratios
from ttabench.metrics import METRICS
from ttabench.records import load_record, read_samples

Query = tuple[int, str, str]
"""(seed, episode, key): two runs are paired by it."""
Values = Mapping[Query, float] | Mapping[Query, Unit]
"""The metric of every query; of a ratio, what was scored."""


def ratio_of(metric: str) -> Ratio | None:
    """What a metric is a ratio of, where it is no plain mean."""
    return METRICS[metric].ratio if metric in METRICS else None


def answered(folders: Sequence[Path], metric: str) -> Values:
    """The metric of every query of these runs."""
    if ratio_of(metric) is not None:
        return _units(folders)
    values: dict[Query, float] = {}
    for query, (value,) in _samples(folders, (metric,)):
        if value is not None:
            values[query] = float(value)
    return values


def _units(folders: Sequence[Path]) -> dict[Query, Unit]:
    """Scored stretches; texts of different seeds are different texts."""
    found: dict[Query, Unit] = {}
    for query, (logprobs, tokens, words) in _samples(folders, ("logprobs", "tokens", "words")):
        found[query] = Unit(f"{query[0]} {query[1]}", -float(logprobs[0]), int(tokens[0]), int(words))
    return found


def _samples(folders: Sequence[Path], wanted: Sequence[str]) -> Iterator[tuple[Query, tuple[Any, ...]]]:
    for folder in folders:
        seed = int(load_record(folder).config.get("seed", 0))
        columns = read_samples(folder, ["episode", "key", *wanted])
        if all(name in columns for name in wanted):
            named = zip(columns["episode"], columns["key"], strict=True)
            cells = zip(*(columns[name] for name in wanted), strict=True)
            for (episode, key), values in zip(named, cells, strict=True):
                yield (seed, episode, key), values


def apart(
    ratio: Ratio | None, sides: Sequence[Sequence[Any]], resamples: int, seed: int
) -> tuple[float, float, float, float] | None:
    """(difference, low, high, p) of paired values or units; None where a figure is no number."""
    if ratio is None:
        differences = np.subtract(*(np.array(side, dtype=np.float64) for side in sides))
        return float(differences.mean()), *paired_bootstrap(differences, resamples, seed)
    whole = [of_units(ratio, side) for side in sides]
    pairs = [groups(ratio, side) for side in sides]
    if whole[0] is None or whole[1] is None:
        return None
    left, right = (np.array(side, dtype=np.float64) for side in pairs)
    bounds = paired_ratios(left, right, exponential=ratio.outer, resamples=resamples, seed=seed)
    return whole[0].mean - whole[1].mean, *bounds
