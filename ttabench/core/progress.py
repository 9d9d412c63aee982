"""Progress of long work: ticks, and times in words; how it is shown is decided in `terminal`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

Tick: TypeAlias = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, how many there are. What stands behind a comma of the first may
change from call to call: "trained, loss 2.31" goes on counting what "trained, loss 2.35" did."""

UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


def no_tick(what: str, done: int, total: int) -> None:
    """A tick that shows nothing."""


def no_word(line: str) -> None:
    """Say nothing."""


def in_words(seconds: float) -> str:
    """A time that is only known roughly: `4 seconds`, `3 minutes`, `1 hour 20 minutes`, `2 days 5 hours`."""
    if seconds < 55:
        return _counted(max(1, round(seconds)) if seconds < 9.5 else 10 * round(seconds / 10), "second")
    if seconds < 3570:
        return _counted(max(1, round(seconds / 60)), "minute")
    for (unit, size), (smaller, part) in pairwise(UNITS):
        step = 600 if smaller == "minute" else part
        rounded = round(seconds / step) * step
        if rounded >= size:
            whole, rest = divmod(rounded, size)
            return _counted(whole, unit) + (f" {_counted(rest // part, smaller)}" if rest else "")
    raise AssertionError(f"{seconds} seconds are neither short nor long")


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}" + ("" if count == 1 else "s")
