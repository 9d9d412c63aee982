"""One figure of several runs that differ in their seed only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttabench.records.schema import Row
from ttabench.report.pairing import kind_of
from ttabench.stats import aggregation
from ttabench.stats.aggregation import Ratio, estimated
from ttabench.stats.metrics import METRICS


def over_runs(rows: Sequence[Row], values: Sequence[Any], *, draws: bool = False) -> tuple[float, float | None, int]:
    """(value, standard error, n) of one metric over runs that differ in their seed.

    Args:
        rows: theirs.
        values: what their queries add to it, see `answered`; the error is over all that varies among them. Without any
            it is that of the rows, see `aggregation.pooled`.
        draws: each run is one draw of what varies.
    """
    estimate = estimated(kind_of(rows[0].metric), values) if values else None
    return (estimate.mean, estimate.stderr, estimate.n) if estimate else pooled(rows, draws=draws)


def pooled(rows: Sequence[Row], *, draws: bool = False) -> tuple[float, float | None, int]:
    """(mean, standard error, n) over all queries of several runs, from their own; see `aggregation.pooled`."""
    figures = [(row.value, row.stderr, row.weight or row.n) for row in rows]
    value, stderr = aggregation.pooled(figures, _ratio_of(rows[0].metric), draws=draws, fresh=rows[0].source == "mini")
    return value, stderr, sum(row.n for row in rows)


def _ratio_of(metric: str) -> Ratio | None:
    return METRICS[metric].ratio if metric in METRICS else None


def mean(values: Sequence[float | int | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
