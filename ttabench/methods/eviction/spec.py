"""Shared settings, cost formula and spec of evicting methods, without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json
from ttabench.cost import (
    EXTRA_LEARNED_POSITIONS,
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    closed_book_cost,
    window_cost,
)
from ttabench.methods.parts.settings import Amount, as_budget, check_amount, in_tokens
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class EvictionSettings:
    """Settings of every method that evicts."""

    chunk: int | None = None
    """Maximum tokens between evictions. Texts are cut into equal parts, which limits memory and
    positions."""
    positions: Literal["auto", "original", "cache"] = "original"
    """Positions of kept keys: original, or cache: slots 0, 1, ... (rotary models only); auto: cache
    for rotary models."""

    def __post_init__(self) -> None:
        require_at_least(1, chunk=self.chunk)

    def kept_tokens(self, read: int) -> int:
        """Return the number of tokens kept of `read` tokens."""
        raise NotImplementedError


UNIFORM, GLOBAL, BUNDLED_SHARES = "uniform", "global", "shipped"
"""Values of the setting `shares` that are not a path."""


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(EvictionSettings):
    """Settings of methods with one budget."""

    budget: Amount = 0.2
    """Tokens kept in every layer and head, or their share of the tokens read."""
    shares: str = UNIFORM
    """Budgets of heads. uniform: the same for all; global: the best slots of all heads together;
    shipped: those of kvzip, bundled for some models; or a path with a slash, for those of a state of
    kvzip."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)
        if self.shares not in (UNIFORM, GLOBAL, BUNDLED_SHARES) and "/" not in self.shares:
            known = f"{UNIFORM}, {GLOBAL}, {BUNDLED_SHARES} or a path such as ./state"
            raise ValueError(f"shares must be {known}, got {self.shares}")

    def kept_tokens(self, read: int) -> int:
        """Return the budget in tokens."""
        return in_tokens(self.budget, read)


def split_evenly(tokens: int, chunk: int | None) -> list[range]:
    """Split a text into token ranges of nearly equal length, at most `chunk` each."""
    count = -(-tokens // (chunk or max(1, tokens)))
    return [
        range(tokens * number // count, tokens * (number + 1) // count) for number in range(count)
    ]


def moves_keys(settings: EvictionSettings, shape: Shape) -> bool:
    """Return True if kept keys move to the slots 0, 1, ... of the cache."""
    rotary = shape.model_type not in EXTRA_LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)


ScoreFlops: TypeAlias = Callable[[Any, Shape, int, int, int], int]
"""Function (settings, shape, tokens of the part, kept slots, tokens read) -> FLOPs of scoring."""


def eviction_cost(
    settings: EvictionSettings,
    shape: Shape,
    work: Workload,
    score_flops: ScoreFlops = lambda *_: 0,
    *,
    stores_scores: bool = False,
    by_head: bool = True,
    band: int | None = None,
) -> Cost:
    """Compute the cost of reading a text part by part, with an eviction after each.

    Args:
        stores_scores: True if the state stores a score per slot of a layer and head.
        by_head: True if layers and heads keep different slots.
        band: maximum number of positions that a token attends to.
    """
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    kept = read = flops = peak = 0
    shared = True
    for part in map(len, split_evenly(shape.bos_tokens + work.tokens, settings.chunk)):
        read += part
        flops += shape.forward_flops(part, kept, band)
        flops += score_flops(settings, shape, part, kept, read)
        peak = max(peak, kept + part)
        shared = shared and (not by_head or kept + part <= settings.kept_tokens(read))
        kept = min(kept + part, settings.kept_tokens(read))
    heads = shape.layers * shape.kv_heads
    places = kept if shared else kept * heads
    scores = heads * kept if stores_scores else 0
    positions = max(peak, kept + work.query_positions)
    if not moves_keys(settings, shape):
        positions = read + work.query_positions
    return window_cost(
        shape,
        work,
        kept,
        state_floats=shape.slot_floats * kept + scores,
        state_bytes=work.kv_bytes(shape, kept) + FLOAT32_BYTES * (places + scores) + INT64_BYTES,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=positions,
    )


def attention_sum_flops(shape: Shape, queries: int, context: int) -> int:
    """Compute the operations to recompute attention scores and sum them over queries."""
    pairs = shape.attended_pairs(queries, context)
    return shape.layers * shape.heads * (2 * shape.head_dim + 2) * pairs


DEPRECATED_JOIN: dict[str, Json] = {"join": True}
"""Deprecated setting of the methods of earlier versions."""


def budget_cost(
    settings: EvictionSettings, shape: Shape, work: Workload, score_flops: ScoreFlops
) -> Cost | None:
    """Compute `eviction_cost`, None if heads have budgets of their own."""
    if getattr(settings, "shares", UNIFORM) != UNIFORM:
        return None
    return eviction_cost(settings, shape, work, score_flops)


def eviction_spec(
    name: str, summary: str, *, score_flops: ScoreFlops = lambda *_: 0, **fields: Any
) -> MethodSpec:
    """Return the spec of an evicting method; `fields` of `MethodSpec` replace the defaults.

    Args:
        score_flops: operations of scoring, for the default `cost`.
    """
    defaults = {
        "Settings": BudgetSettings,
        "growth": "linear",
        "keep": as_budget,
        "cost": partial(budget_cost, score_flops=score_flops),
    }
    return MethodSpec(name=name, summary=summary, **{**defaults, **fields})
