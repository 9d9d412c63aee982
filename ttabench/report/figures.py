"""Figures of metrics as people read them: 0.719 of f1 is 71.9."""

from __future__ import annotations

import math

from ttabench.core.amounts import number, plus_minus
from ttabench.stats.metrics import METRICS


def scale(metric: str) -> float:
    """What a stored metric is multiplied by to be read: 100 for fractions."""
    return METRICS[metric].scale if metric in METRICS else 1.0


def digits(metric: str) -> int:
    """After the point."""
    return METRICS[metric].digits if metric in METRICS else 1


def shown(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error."""
    return plus_minus(value, stderr, scale(metric), digits(metric))


def plain(metric: str, value: float | None) -> str:
    """A figure, or a difference of two, without an error."""
    return number(None if value is None else value * scale(metric), digits(metric))


def together(metric: str, *values: float) -> list[str]:
    """A difference and the ends of its interval: with more digits where all of them would be shown as zero."""
    largest = max(abs(value) for value in values) * scale(metric)
    needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10 ** -digits(metric) else 0
    return [number(value * scale(metric), max(digits(metric), needed)) for value in values]


def probability(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
