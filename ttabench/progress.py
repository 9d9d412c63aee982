"""Telling somebody how far a long piece of work is; who it is and how it looks is decided above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Tick: TypeAlias = Callable[[str, int, int], None]
"""Called with what is counted, how many are done, how many there are."""


def no_tick(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def no_word(line: str) -> None:
    """Say nothing."""


class Counts:
    """How far a run is, over all its episodes; what there is may have been estimated too low."""

    def __init__(self, tick: Tick, observes: int, asks: int) -> None:
        self._tick, self._observes, self._asks = tick, observes, asks
        self._read = self._asked = 0

    def read(self, more: int) -> None:
        """So many more pieces were read."""
        self._read += more
        if self._observes:
            self._tick("read", self._read, max(self._read, self._observes))

    def asked(self, more: int) -> None:
        """So many more queries are answered."""
        self._asked += more
        self._tick("answered", self._asked, max(self._asked, self._asks))
