"""Settings of `icl`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.bounds import at_least

RESERVE = 256
"""Positions left for prompt and answer when `max_tokens` is not given."""


@dataclass(frozen=True, kw_only=True)
class InContextSettings:
    """Settings of `icl`."""

    truncate: Literal["error", "left", "right"] = "error"
    """When the context outgrows the window: refuse; forget the oldest tokens; or stop reading."""
    max_tokens: int | None = None
    """Context tokens that may stand in the window; by default the model's positions less 256 for prompt and answer."""

    def __post_init__(self) -> None:
        at_least(1, max_tokens=self.max_tokens)

    def limit(self, positions: int) -> int:
        """Context tokens that may stand in the window of a model of so many positions."""
        return self.max_tokens or max(1, positions - RESERVE)
