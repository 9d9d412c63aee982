"""Progress of long work: ticks, rates and time left; how it is shown is decided in `terminal`.

    pace = Pace()
    pace.tick(32, 400)      ...      pace.rate, pace.left()       4.2 a second, 85.0 seconds

Also the one line that stands on a terminal while libraries load, before anything that could show more is imported.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

Tick: TypeAlias = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, how many there are. What stands behind a comma of the first may
change from call to call: "trained, loss 2.31" goes on counting what "trained, loss 2.35" did."""

REMEMBERED = 50
"""Ticks that a rate is taken over: the newest of the work, which need not be as fast as its beginning."""
UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))
CLEAR = "\r\x1b[K"
"""Back to the start of the line, which is emptied."""


def no_tick(what: str, done: int, total: int) -> None:
    """A tick that shows nothing."""


def no_word(line: str) -> None:
    """Say nothing."""


class Pace:
    """How fast something that is counted goes on, and how long it still takes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticks: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self.done = self.total = 0

    def tick(self, done: int, total: int) -> None:
        """So many are done, of so many."""
        self.done, self.total = done, total
        if not self._ticks or done != self._ticks[-1][1]:
            self._ticks.append((self._clock(), done))

    @property
    def rate(self) -> float | None:
        """How many a second; None before two ticks."""
        if len(self._ticks) < 2:
            return None
        (begin, first), (end, last) = self._ticks[0], self._ticks[-1]
        return (last - first) / (end - begin) if last > first and end > begin else None

    def left(self) -> float | None:
        """Seconds that the rest should take from now; None where no rate is known."""
        rate = self.rate
        if rate is None:
            return None
        return max(0.0, (self.total - self.done) / rate - (self._clock() - self._ticks[-1][0]))

    def rate_in_words(self) -> str:
        """`4.2/s`; slow work as `12.0 s each`; empty where no rate is known."""
        rate = self.rate
        if rate is None:
            return ""
        return f"{rate:,.1f}/s" if rate >= 1 else f"{1 / rate:,.1f} s each"

    def words(self) -> str:
        """`4.2/s, about 1 minute left`; empty where no rate is known."""
        left = self.left()
        if left is None:
            return ""
        return self.rate_in_words() + ("" if self.done >= self.total else f", about {in_words(left)} left")


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


_shown = False


def loading(what: str) -> None:
    """Say on a terminal that this is being loaded, until `loaded`; say nothing where nobody watches."""
    global _shown
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(f"{CLEAR}Loading {what} ...")
        sys.stderr.flush()
        _shown = True


def say_loading(model: str, silent: bool) -> None:
    """Show that libraries and the model load, which takes seconds, unless `silent`."""
    if not silent:
        loading(f"libraries and {Path(model).name or model}")


def loaded() -> None:
    """Take that line away, if it stands there: something else is going to be shown."""
    global _shown
    if _shown:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
        _shown = False
