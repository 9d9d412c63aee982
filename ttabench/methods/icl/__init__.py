"""In-context learning, the full-context baseline, if the context fits the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    closed_book_cost,
    reread_cost,
    window_cost,
)
from ttabench.methods.spec import MethodSpec

RESERVED_TOKENS = 256
"""Positions reserved for prompt and answer if `max_tokens` is not set; at most half of all."""


@dataclass(frozen=True, kw_only=True)
class InContextSettings:
    """Settings of `icl`."""

    truncate: Literal["error", "left", "right"] = "error"
    """If the context exceeds the window: error, left (drop the oldest tokens), or right (stop
    reading)."""
    max_tokens: int | None = None
    """Maximum context tokens in the window. Default: positions minus 256 for prompt and answer,
    or half of them if they are fewer than 512."""

    def __post_init__(self) -> None:
        require_at_least(1, max_tokens=self.max_tokens)

    def limit(self, positions: int) -> int:
        """Return the maximum context tokens in the window of a model."""
        return self.max_tokens or max(1, positions // 2, positions - RESERVED_TOKENS)


def cost(settings: InContextSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of full context (decoder forward: arXiv 2204.02311, appendix B)."""
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    tokens, limit = work.tokens, settings.max_tokens
    if settings.truncate != "error" and shape.positions is not None:
        limit = settings.limit(shape.positions)
    tokens = tokens if limit is None else min(tokens, limit)
    if settings.truncate == "left":
        return reread_cost(shape, work, tokens)
    slots = shape.bos_tokens + tokens
    size = work.kv_bytes(shape, slots) + INT64_BYTES
    return window_cost(shape, work, slots, state_floats=shape.slot_floats * slots, state_bytes=size)


ICL = MethodSpec(
    name="icl",
    summary="full context: all keys and values, read once",
    import_path="ttabench.methods.icl.method:InContext",
    Settings=InContextSettings,
    growth="linear",
    cost=cost,
)
METHODS = (ICL,)
