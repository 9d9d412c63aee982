"""Postponing of SIGINT and SIGTERM until work is saved.

with postpone_signals() as signals:
    while not signals: step()     # the first signal waits until the end, a second acts at once
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postpone_signals() -> Iterator[list[int]]:
    """Postpone the first SIGINT or SIGTERM to the end of the block. Yields the received signals.

    If an exception ends the block, the signal is dropped. Ignored signals stay ignored. Only the
    main thread postpones signals.
    """
    received: list[int] = []
    before = dict[int, object]()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `getsignal` returned it

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        before = {
            number: handler
            for number, handler in handlers.items()
            if handler not in (signal.SIG_IGN, None)
        }
    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        restore()
    for number in received:
        signal.raise_signal(number)
