"""KVzip and Attention Matching: settings, specs and cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    closed_book_cost,
    window_cost,
)
from ttabench.methods.eviction.spec import (
    DEPRECATED_JOIN,
    GLOBAL,
    UNIFORM,
    BudgetSettings,
    eviction_spec,
)
from ttabench.methods.parts.settings import Amount


@dataclass(frozen=True, kw_only=True)
class KVzipSettings(BudgetSettings):
    """Settings of `kvzip` and `attention_matching`; the defaults are the released code's."""

    budget: Amount = 0.2
    """Mean tokens kept per layer and head, or their share of the tokens read."""
    shares: str = GLOBAL
    """Budgets of heads. uniform: the same for all; global: the best slots of all heads together;
    shipped: the bundled ones of this model; or a path with a slash, for those of a state of
    kvzip."""
    repeat_chunk: int = 2048
    """Tokens of the text per repetition; fewer if the model has too few positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, repeat_chunk=self.repeat_chunk)
        if self.positions != "original":
            raise ValueError(
                f"only positions=original is supported, got positions={self.positions}"
            )


REPEAT_PROMPT_TOKENS, LATER_REPEAT_PROMPT_TOKENS = 21, 37
"""Tokens of the prompt of the first repeated chunk, and of later ones, with the tokenizer of nano.
Those of other models need fewer."""
MATCHED_TOKENS, FIT_STEPS = 1024, 60
"""Attention Matching: tokens of the repetition that are matched, and steps of accelerated projected
gradient descent on weights, of which biases are the logarithms."""


def ragged_cost(
    settings: KVzipSettings, shape: Shape, work: Workload, *, slot_floats: int = 1, **figures: int
) -> Cost:
    """Compute the cost of keeping the best slots of a text that is read once.

    Answers cost as much as the longest head. Without `shares=uniform`, that is at most the text.

    Args:
        slot_floats: numbers stored per slot of a layer and head, such as its score.
        figures: figures of `Cost` that replace those of one reading.
    """
    read = shape.bos_tokens + work.tokens
    kept = min(read, settings.kept_tokens(read))
    heads = shape.layers * shape.kv_heads
    return window_cost(
        shape,
        work,
        kept if settings.shares == UNIFORM else read,
        **{
            "state_floats": (shape.slot_floats + slot_floats * heads) * kept,
            # a position per slot, and the number of slots per head
            "state_bytes": work.kv_bytes(shape, kept, is_ragged=True)
            + FLOAT32_BYTES * heads * ((1 + slot_floats) * kept + 1)
            + INT64_BYTES,
            "adapt_slots": read,
            "adapt_flops": shape.forward_flops(read),
            "positions": read + work.query_positions,
            **figures,
        },
    )


def cost(settings: KVzipSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of reading a text, repeating it, and scoring its slots."""
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    read = shape.bos_tokens + work.tokens
    flops, repeated = shape.forward_flops(read), 0
    for begin in range(0, read, settings.repeat_chunk):
        part = min(settings.repeat_chunk, read - begin)
        prompt = LATER_REPEAT_PROMPT_TOKENS if begin else REPEAT_PROMPT_TOKENS
        repeated = max(repeated, prompt + part)
        flops += shape.forward_flops(prompt + part, read)
        # attention weights of the repetition over the chunk and over itself
        flops += 2 * shape.layers * shape.width * (prompt + part) * (prompt + 2 * part)
    return ragged_cost(
        settings,
        shape,
        work,
        adapt_slots=read + repeated,
        adapt_flops=flops,
        positions=read + max(repeated, work.query_positions),
    )


def matching_cost(settings: KVzipSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of KVzip, and of fitting biases and values; heads keep equally many slots."""
    selected = cost(settings, shape, work)
    if not work.chunk_tokens:
        return selected
    read = shape.bos_tokens + work.tokens
    kept = min(read, settings.kept_tokens(read))
    queries = shape.heads // shape.kv_heads * min(MATCHED_TOKENS, read)
    products = 4 * queries * shape.head_dim * (read + kept)  # scores, outputs, residuals
    fits = 4 * queries * kept**2 + 2 * FIT_STEPS * kept**2 + 2 * kept**3 // 3
    return ragged_cost(
        settings,
        shape,
        work,
        slot_floats=2,
        adapt_slots=selected.adapt_slots,
        adapt_flops=selected.adapt_flops + shape.layers * shape.kv_heads * (products + fits),
        positions=selected.positions,
    )


KVZIP = eviction_spec(
    "kvzip",
    "slots with the most attention when the text is repeated, over all layers and heads",
    import_path="ttabench.methods.eviction.kvzip.method:KVzip",
    Settings=KVzipSettings,
    cost=cost,
    test_settings=KVzipSettings(budget=12),
    deprecated_settings={
        **DEPRECATED_JOIN,
        "score": "max",
        "uniform": False,
        "sinks": 4,
        "prompt": "\n\nRepeat the previous context exactly.",
        "prompt_later": "\n\nRepeat the part of the previous context exactly, starting with",
    },
    paper="2505.23416",
)
ATTENTION_MATCHING = replace(
    KVZIP,
    name="attention_matching",
    summary="KVzip's slots, with biases and values fitted to the output of full attention",
    import_path="ttabench.methods.eviction.kvzip.method:AttentionMatching",
    cost=matching_cost,
    deprecated_settings={
        **KVZIP.deprecated_settings,
        "query_tokens": 1024,
        "ridge": 0.001,
        "keys": "kvzip",
        "queries": "repeat",
        "fit_bias": True,
        "fit_values": True,
        "seed": 0,
    },
    paper="2602.16284",
)
