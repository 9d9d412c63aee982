"""Figures of metrics as people read them: 0.719 of f1 is 71.9."""

from __future__ import annotations

import math

from ttabench.core.amounts import number, plus_minus
from ttabench.stats.metrics import known


def shown(metric: str, value: float, stderr: float | None) -> str:
    """A figure of a metric with its standard error."""
    return plus_minus(value, stderr, known(metric).scale, known(metric).digits)


def plain(metric: str, value: float | None) -> str:
    """A figure, or a difference of two, without an error."""
    return number(None if value is None else value * known(metric).scale, known(metric).digits)


def with_interval(metric: str, value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A difference with its interval: `21.9 [-0.6, 41.8]`; with more digits where all would be shown as zero."""
    scale, digits = known(metric).scale, known(metric).digits
    values = [each * scale for each in (value, *(() if low is None or high is None else (low, high)))]
    largest = max(map(abs, values))
    needed = 1 - math.floor(math.log10(largest)) if 0 < largest < 0.5 * 10**-digits else 0
    amount, *ends = (number(each, max(digits, needed)) for each in values)
    return f"{amount}{unit} [{', '.join(ends)}]" if ends else f"{amount}{unit}"


def probability(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
