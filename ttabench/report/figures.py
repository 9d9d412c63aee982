"""Figures of metrics as people read them: 0.719 of f1 is 71.9."""

from __future__ import annotations

from ttabench.core.render import number, plus_minus
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
    return "-" if value is None else number(value * scale(metric), digits(metric))


def probability(p: float | None) -> str:
    """A p value."""
    return "-" if p is None else f"{p:.4f}" if p >= 0.001 else "<0.001"
