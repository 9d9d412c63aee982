"""Figures of metrics as people read them: 0.719 of f1 is 71.9."""

from __future__ import annotations

import math

from ttabench.core.amounts import number, plus_minus
from ttabench.stats.metrics import known


def scale(metric: str) -> float:
    """What a stored metric is multiplied by to be read: 100 for fractions."""
    return known(metric).scale


def digits(metric: str) -> int:
    """After the point."""
    return known(metric).digits


def shown(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error."""
    return plus_minus(value, stderr, scale(metric), digits(metric))


def plain(metric: str, value: float | None) -> str:
    """A figure, or a difference of two, without an error."""
    return number(None if value is None else value * scale(metric), digits(metric))


def with_interval(metric: str, value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A difference with its interval: `21.9 [-0.6, 41.8]`; with more digits where all would be shown as zero."""
    values = [value, *([] if low is None or high is None else [low, high])]
    largest = max(map(abs, values)) * scale(metric)
    needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10 ** -digits(metric) else 0
    amount, *ends = (number(each * scale(metric), max(digits(metric), needed)) for each in values)
    return f"{amount}{unit} [{', '.join(ends)}]" if ends else f"{amount}{unit}"


def probability(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
