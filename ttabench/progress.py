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
