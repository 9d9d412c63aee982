"""Progress of long work: ticks; how it is shown is decided in `terminal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Tick: TypeAlias = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, how many there are. What stands behind a comma of the first may
change from call to call: "trained, loss 2.31" goes on counting what "trained, loss 2.35" did."""


def no_tick(what: str, done: int, total: int) -> None:
    """A tick that shows nothing."""


def no_word(line: str) -> None:
    """Say nothing."""
