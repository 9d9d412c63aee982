"""Progress on standard error: bars on a terminal, otherwise a plain line now and then.

    with show_progress(enabled=True) as on_progress:
        on_progress("answered", 32, 400)      answered ━━╺━━━━━━━━━━━━━━━━━━━ 32/400 0:01:28

Bars disappear at the end. In a file or pipe, the first line appears after half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ttabench.core.types import ProgressCallback, no_progress

PRINT_INTERVAL_SECONDS = 30.0
"""Interval between plain lines."""


@contextmanager
def show_progress(enabled: bool) -> Iterator[ProgressCallback]:
    """Yield a progress callback: one bar per text before the comma. Silent if disabled."""
    if not enabled:
        yield no_progress
        return
    if not sys.stderr.isatty():
        last = time.monotonic()

        def print_now_and_then(what: str, done: int, total: int) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= PRINT_INTERVAL_SECONDS:
                last = now
                print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

        yield print_now_and_then
        return
    name, bar = TextColumn("{task.description}", markup=False), BarColumn(bar_width=24)
    console = Console(stderr=True)
    with Progress(
        name, bar, MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bars:
        tasks = dict[str, TaskID]()

        def update_bars(what: str, done: int, total: int) -> None:
            counted = what.partition(",")[0]
            if counted not in tasks:
                tasks[counted] = bars.add_task(what)
            bars.update(tasks[counted], description=what, completed=done, total=total)

        yield update_bars
