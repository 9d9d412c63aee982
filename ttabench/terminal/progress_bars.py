"""Progress as people see it, on standard error: bars on a terminal, elsewhere a plain line now and then.

    with progress(enabled=True) as tick:
        tick("answered", 32, 400)         answered ━━╺━━━━━━━━━━━━━━━━━━━━━ 32/400 4.2/s 0:01:28 left

Bars go when the work is done. The first line in a file or a pipe comes after half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, OverflowMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ttabench.core.progress import Pace, Tick, loaded, no_tick

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
            loaded()
            bars.stop()


def counted(what: str) -> str:
    """The name of the thing that a tick counts, without the detail behind its comma."""
    return what.partition(",")[0]


class Lines:
    """A plain line every `EVERY` seconds; `even`: see `progress`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, even: bool = True) -> None:
        self._clock, self._last, self._even = clock, clock(), even
        self._paces: dict[str, Pace] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Called with what is counted, see `progress.Tick`."""
        pace = self._paces.setdefault(counted(what), Pace(self._clock))
        pace.tick(done, total)
        if self._clock() - self._last >= EVERY:
            self._last = self._clock()
            words = pace.words() if self._even else ""
            print(f"{what}: {done:,} of {total:,}{words and ', '}{words}", file=sys.stderr, flush=True)


class _PaceColumn(ProgressColumn):
    """The rate of a bar's `Pace` and the time left; where no rate is known, the time so far."""

    def render(self, task: Task) -> Text:
        """As rich wants it, some times a second."""
        pace = task.fields["pace"]
        assert isinstance(pace, Pace)
        left = pace.left() if task.fields["even"] else None
        if pace.done >= pace.total and task.fields["even"]:
            return Text(pace.rate_in_words(), style="cyan")
        if left is None:
            return Text(f"{_clock_time(task.elapsed or 0.0)} so far", style="cyan")
        return Text(f"{pace.rate_in_words()} {_clock_time(left)} left", style="cyan")


def _clock_time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _whole(overflow: OverflowMethod = "fold") -> Column:
    """A column that keeps to one line."""
    return Column(no_wrap=True, overflow=overflow)


class Bars:
    """A bar for each thing counted; they are shown from the first tick on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, even: bool = True) -> None:
        self._clock, self._even = clock, even
        name = TextColumn("{task.description}", markup=False, table_column=_whole("ellipsis"))
        columns = (name, BarColumn(bar_width=24), MofNCompleteColumn(table_column=_whole()), _PaceColumn(_whole()))
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, tuple[TaskID, Pace]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Called with what is counted, see `progress.Tick`."""
        name = counted(what)
        if not self._tasks:
            loaded()
            self._bars.start()
        if name not in self._tasks:
            pace = Pace(self._clock)
            bar = self._bars.add_task(what, total=total, completed=done, pace=pace, even=self._even)
            self._tasks[name] = bar, pace
        task, pace = self._tasks[name]
        pace.tick(done, total)
        self._bars.update(task, description=what, completed=done, total=total)

    def drop(self, what: str) -> None:
        """Take the bar of something away that is counted no longer."""
        if task := self._tasks.pop(counted(what), None):
            self._bars.remove_task(task[0])

    def stop(self) -> None:
        """Take the bars away."""
        if self._tasks:
            self._bars.stop()
