"""Progress as people see it, on standard error: bars on a terminal, elsewhere a plain line now and then.

    with progress(enabled=True) as tick:
        tick("answered", 32, 400)         answered ━━╺━━━━━━━━━━━━━━━━━━━━━ 32/400 4.2/s 0:01:28

Bars go when the work is done. The first line in a file or a pipe comes after half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, OverflowMethod
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from ttabench.core.progress import Tick, no_tick

EVERY = 30.0
"""Seconds between plain lines."""


@contextmanager
def progress(enabled: bool, *, even: bool = True) -> Iterator[Tick]:
    """How far each thing counted is, at what rate and how long it still takes; silent when off. Where things are not
    `even`, for they do not take about the same time each, no rate and no time left are shown."""
    if not enabled:
        yield no_tick
    elif not sys.stderr.isatty():
        yield Lines(even=even)
    else:
        bars = Bars(even=even)
        try:
            yield bars
        finally:
            bars.stop()


def counted(what: str) -> str:
    """The name of the thing that a tick counts, without the detail behind its comma."""
    return what.partition(",")[0]


class Lines:
    """A plain line every `EVERY` seconds; `even`: see `progress`."""

    def __init__(self, *, even: bool = True) -> None:
        self._last, self._even = time.monotonic(), even
        self._begun: dict[str, tuple[float, int]] = {}
        """When each thing was counted first, and how many were done by then."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Called with what is counted, see `progress.Tick`."""
        now = time.monotonic()
        begin, before = self._begun.setdefault(counted(what), (now, done))
        if now - self._last >= EVERY:
            self._last, left = now, ""
            if self._even and before < done < total:
                seconds = round((now - begin) * (total - done) / (done - before))
                left = f", about {timedelta(seconds=seconds)} left"
            print(f"{what}: {done:,} of {total:,}{left}", file=sys.stderr, flush=True)


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        """As rich wants it, some times a second."""
        return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="cyan")


def _whole(overflow: OverflowMethod = "fold") -> Column:
    """A column that keeps to one line."""
    return Column(no_wrap=True, overflow=overflow)


class Bars:
    """A bar for each thing counted; they are shown from the first tick on."""

    def __init__(self, *, even: bool = True) -> None:
        name = TextColumn("{task.description}", markup=False, table_column=_whole("ellipsis"))
        times = (_Rate(_whole()), TimeRemainingColumn(table_column=_whole())) if even else (TimeElapsedColumn(),)
        columns = (name, BarColumn(bar_width=24), MofNCompleteColumn(table_column=_whole()), *times)
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Called with what is counted, see `progress.Tick`."""
        name = counted(what)
        if not self._tasks:
            self._bars.start()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(what)
        self._bars.update(self._tasks[name], description=what, completed=done, total=total)

    def stop(self) -> None:
        """Take the bars away."""
        if self._bars.live.is_started:
            self._bars.stop()
