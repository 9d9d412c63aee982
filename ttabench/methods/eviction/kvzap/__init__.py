"""KVzap: settings, spec and training recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import Cost, Shape, Workload, closed_book_cost
from ttabench.methods.eviction.kvzip import KVZIP, KVzipSettings, ragged_cost
from ttabench.methods.parts.settings import Amount, as_budget, check_amount
from ttabench.methods.spec import Recipe


@dataclass(frozen=True, kw_only=True)
class KVzapSettings(KVzipSettings):
    """Settings of `kvzap`."""

    scorer: Literal["linear", "mlp", "gate"] = "linear"
    """Predictor of the scores of a layer. linear: ridge regression in closed form; mlp: two layers;
    gate: the gate of Fast KVzip."""
    hidden: int = 512
    """Hidden size of the mlp."""
    threshold: float | None = None
    """Keep the slots with at least this predicted log score, whatever their number. Replaces
    `budget` and `shares`."""
    recent: Amount | None = None
    """Last tokens that are always kept, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, hidden=self.hidden)
        if self.recent is not None:
            check_amount("recent", self.recent)


GATE_FEATURES, GATE_SINKS = 16, 16
"""Sizes of the released gates of Fast KVzip."""


def scorer_sizes(settings: KVzapSettings, shape: Shape) -> tuple[int, int]:
    """Return the parameters of the scorer of a layer, and its operations per token."""
    width, heads, hidden = shape.width, shape.kv_heads, settings.hidden
    if settings.scorer == "linear":
        return heads * (width + 1), 2 * width * heads
    if settings.scorer == "mlp":
        weights = hidden * (width + heads)
        return weights + hidden + heads, 2 * weights
    queries, sinks = shape.heads * GATE_FEATURES, heads * GATE_SINKS * GATE_FEATURES
    weights = (queries + heads * GATE_FEATURES) * width
    own = queries + 2 * GATE_FEATURES + sinks + shape.heads
    return weights + own, 2 * (weights + shape.heads * GATE_SINKS * GATE_FEATURES)


def cost(settings: KVzapSettings, shape: Shape, work: Workload) -> Cost | None:
    """Compute the cost of one reading, None with a threshold."""
    if settings.threshold is not None:
        return None
    parameters, flops = scorer_sizes(settings, shape)
    added = shape.layers * parameters
    if not work.chunk_tokens:
        return replace(closed_book_cost(shape, work), added_parameters=added)
    read = shape.bos_tokens + work.tokens
    return ragged_cost(
        settings,
        shape,
        work,
        added_parameters=added,
        adapt_flops=shape.forward_flops(read) + shape.layers * flops * read,
    )


KVZAP = replace(
    KVZIP,
    name="kvzap",
    summary="KVzip's slots, with scores predicted while the text is read once",
    import_path="ttabench.methods.eviction.kvzap.method:KVzap",
    Settings=KVzapSettings,
    cost=cost,
    keep=lambda amount: {**as_budget(amount), "threshold": None},
    trainable=True,
    recipes={"": Recipe(documents=(4,), steps=200)},
    test_settings=KVzapSettings(budget=12),
    deprecated_settings={},
    paper="2601.07891",
)
