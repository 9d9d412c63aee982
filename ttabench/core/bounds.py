"""Bounds of settings, refused with one sentence.

at_least(1, rank=0)      ValueError: rank must be at least 1, got 0
"""

from __future__ import annotations

MOST_THREADS = 1024
"""More than any machine has use for; far beyond, no thread can be started."""


def at_least(least: float, **values: float | None) -> None:
    """Whether all of these are no smaller; None is no value.

    Raises:
        ValueError: the first one that is smaller; states name and value.
    """
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
