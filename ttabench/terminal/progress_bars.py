"""Progress as people see it, on standard error: bars on a terminal, elsewhere a plain line now and then.

    with progress(enabled=True) as tick:
        tick("answered", 32, 400)         answered ━━╺━━━━━━━━━━━━━━━━━━━━━ 32/400 0:01:28

Bars go when the work is done. The first line in a file or a pipe comes after half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ttabench.core.types import Tick, no_tick

EVERY = 30.0
"""Seconds between plain lines."""


@contextmanager
def progress(enabled: bool, *, even: bool = True) -> Iterator[Tick]:
    """How far each thing counted is, and how long it still takes; silent when off. Where things are not `even`, for
    they do not take about the same time each, no time left is shown. A thing is named before a comma, detail after."""
    if not enabled:
        yield no_tick
        return
    if not sys.stderr.isatty():
        yield Lines(even=even)
        return
    clock = TimeRemainingColumn() if even else TimeElapsedColumn()
    name = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(name, BarColumn(bar_width=24), MofNCompleteColumn(), clock, console=console, transient=True) as bars:
        tasks = dict[str, TaskID]()

        def tick(what: str, done: int, total: int) -> None:
            thing = what.partition(",")[0]
            if thing not in tasks:
                tasks[thing] = bars.add_task(what)
            bars.update(tasks[thing], description=what, completed=done, total=total)

        yield tick


class Lines:
    """A plain line every `EVERY` seconds; `even`: see `progress`."""

    def __init__(self, *, even: bool = True) -> None:
        self._last, self._even = time.monotonic(), even
        self._begun: dict[str, tuple[float, int]] = {}
        """When each thing was counted first, and how many were done by then."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Called with what is counted, see `progress.Tick`."""
        now = time.monotonic()
        begin, before = self._begun.setdefault(what.partition(",")[0], (now, done))
        if now - self._last >= EVERY:
            self._last, left = now, ""
            if self._even and before < done < total:
                seconds = round((now - begin) * (total - done) / (done - before))
                left = f", about {timedelta(seconds=seconds)} left"
            print(f"{what}: {done:,} of {total:,}{left}", file=sys.stderr, flush=True)
