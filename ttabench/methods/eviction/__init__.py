"""Settings and costs of evicting methods: window, SnapKV, H2O, random slots and KVzip.

Cost formulas follow the parts of a text: reading, eviction, and recomputing attention scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

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
    reread_cost,
    window_cost,
)
from ttabench.methods.parts.settings import Amount, as_budget, check_amount, in_tokens
from ttabench.methods.spec import MethodSpec

STREAM_BLOCK_TOKENS = 512
"""Maximum tokens per block of a stream if `chunk` is not set, fewer if positions are limited."""


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


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(EvictionSettings):
    """Settings of methods with one budget."""

    budget: Amount = 0.2
    """Tokens kept in every layer and head, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)

    def kept_tokens(self, read: int) -> int:
        """Return the budget in tokens."""
        return in_tokens(self.budget, read)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(EvictionSettings):
    """Settings of `window`; the defaults are StreamingLLM's."""

    n_sink: int = 4
    """First tokens of the text that are always kept, BOS included. 0: a plain sliding window.
    Unused with mode=stride."""
    recent: Amount = 512
    """Last tokens kept; with mode=postprefill also their share of the tokens read."""
    budget: Amount | None = None
    """Total slots, replaces `recent`. Sinks take at most half of them, recent tokens the rest."""
    mode: Literal["stream", "postprefill", "stride"] = "stream"
    """stream: evict while reading; postprefill: evict after reading with full attention; stride:
    read the kept tokens again from position 0."""
    evict: Literal["before", "after"] = "before"
    """A token of a stream sees `recent` tokens including itself (before), or excluding itself
    (after, as in the released perplexity loop)."""
    positions: Literal["auto", "original", "cache"] = "auto"
    """Positions of kept keys: original or cache; auto: cache for rotary models, original with
    mode=postprefill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, n_sink=self.n_sink)
        name, amount = ("recent", self.recent) if self.budget is None else ("budget", self.budget)
        check_amount(name, amount)
        if isinstance(amount, float) and self.mode != "postprefill":
            raise ValueError(
                f"a share requires mode=postprefill, as a stream has no length, got {name}={amount}"
            )
        if self.mode == "stride" and amount < 2:
            raise ValueError(f"mode=stride keeps {name} - 1 tokens, got {name}={amount}")
        if (self.mode, self.positions) in (
            ("postprefill", "cache"),
            ("stride", "cache"),
            ("stride", "original"),
        ):
            raise ValueError(f"mode={self.mode} does not support positions={self.positions}")

    def amounts(self, read: int) -> tuple[int, int]:
        """Return the numbers of sinks and recent tokens kept of `read` tokens."""
        if self.budget is None:
            return self.n_sink, in_tokens(self.recent, read)
        kept = in_tokens(self.budget, read)
        sinks = 0 if self.mode == "stride" else min(self.n_sink, kept // 2)
        return sinks, kept - sinks

    def kept_tokens(self, read: int) -> int:
        """Return the number of sinks and recent tokens, with mode=stride one fewer."""
        sinks, recent = self.amounts(read)
        return recent - 1 if self.mode == "stride" else recent + sinks


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(BudgetSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench values."""

    budget: Amount = 1024
    """Tokens kept in every layer, window included, or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context, or their share. Their attention scores the other slots, and they
    are always kept. If the last part of the text is shorter, all its tokens are used."""
    window_share: float = 1.0
    """Maximum share of the window in the budget."""
    kernel: int = 7
    """Slots per pooling window of the scores; odd."""
    pool: Literal["max", "avg"] = "max"
    """Pooling of the scores; averages include zeros beyond the ends."""
    query_aware: bool = False
    """Evict separately for each query, which is read after the context: the window ends with its
    tokens. The state is then the full cache. Budget and shares still refer to the context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("window", self.window)
        check_amount("window_share", float(self.window_share))
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if (
            self.window_share == 1.0
            and type(self.window) is type(self.budget)
            and self.window >= self.budget
        ):
            raise ValueError(
                f"window must be smaller than the budget {self.budget}, got {self.window}"
            )

    def amounts(self, read: int) -> tuple[int, int]:
        """Return budget and window in tokens after reading `read` tokens."""
        budget = self.kept_tokens(read)
        limit = in_tokens(float(self.window_share), budget)
        return budget, min(in_tokens(self.window, read), limit)


@dataclass(frozen=True, kw_only=True)
class H2OSettings(EvictionSettings):
    """Settings of `h2o`; the defaults are the released code's.

    It also evicts after the prompt, then one slot per answer token. Shares refer to context and
    prompt together.
    """

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head, or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)

    def amounts(self, read: int) -> tuple[int, int]:
        """Return the numbers of heavy hitters and recent tokens kept of `read` tokens."""
        return in_tokens(self.heavy, read), in_tokens(self.recent, read)

    def kept_tokens(self, read: int) -> int:
        """Return the number of heavy hitters and recent tokens."""
        return sum(self.amounts(read))


@dataclass(frozen=True, kw_only=True)
class RandomSlotsSettings(BudgetSettings):
    """Settings of `random_slots`."""

    seed: int = 0
    """Seed of the choice. The first token of the text is always kept."""


@dataclass(frozen=True, kw_only=True)
class KVzipSettings(BudgetSettings):
    """Settings of `kvzip` and `attention_matching`; the defaults are the released code's."""

    budget: Amount = 0.2
    """Mean tokens kept per layer and head, or their share of the tokens read."""
    repeat_chunk: int = 2048
    """Tokens of the text per repetition; fewer if the model has too few positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, repeat_chunk=self.repeat_chunk)
        if self.positions != "original":
            raise ValueError(
                f"only positions=original is supported, got positions={self.positions}"
            )


def split_evenly(tokens: int, chunk: int | None) -> list[range]:
    """Split a text into token ranges of nearly equal length, at most `chunk` each."""
    count = -(-tokens // (chunk or max(1, tokens)))
    return [
        range(tokens * number // count, tokens * (number + 1) // count) for number in range(count)
    ]


def _moves_keys(settings: EvictionSettings, shape: Shape) -> bool:
    rotary = shape.model_type not in EXTRA_LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)


def _cost(
    settings: EvictionSettings,
    shape: Shape,
    work: Workload,
    score_flops: Callable[[int, int, int], int] = lambda *_: 0,
    *,
    carried: int = 0,
    by_head: bool = True,
    band: int | None = None,
) -> Cost:
    """Compute the cost of reading a text part by part, with an eviction after each.

    Args:
        score_flops: scoring operations, from tokens of the part, kept slots and tokens read.
        carried: float32 numbers stored per slot of a layer and head.
        by_head: True if layers and heads keep different slots.
        band: maximum number of positions that a token attends to.
    """
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    kept = read = flops = peak = 0
    shared = True
    for part in map(len, split_evenly(shape.bos_tokens + work.tokens, settings.chunk)):
        read += part
        flops += shape.forward_flops(part, kept, band) + score_flops(part, kept, read)
        peak = max(peak, kept + part)
        shared = shared and (not by_head or kept + part <= settings.kept_tokens(read))
        kept = min(kept + part, settings.kept_tokens(read))
    heads, floats = shape.layers * shape.kv_heads, shape.slot_floats * kept
    places = kept if shared else kept * heads
    scores = carried * heads * kept
    positions = max(peak, kept + work.query_positions)
    if not _moves_keys(settings, shape):
        positions = read + work.query_positions
    return window_cost(
        shape,
        work,
        kept,
        state_floats=floats + scores,
        state_bytes=floats * work.value_bytes + FLOAT32_BYTES * (places + scores) + INT64_BYTES,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=positions,
    )


def _scoring_flops(shape: Shape, queries: int, context: int) -> int:
    """Compute the operations to recompute attention scores and sum them over queries."""
    pairs = shape.attended_pairs(queries, context)
    return shape.layers * shape.heads * (2 * shape.head_dim + 2) * pairs


def _snapkv_cost(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost | None:
    """Compute the cost of SnapKV (arXiv 2404.14469, section 4), None if `query_aware`.

    It is full attention, and attention of the last `window` tokens a second time.
    """

    def score_flops(part: int, kept: int, read: int) -> int:
        window = min(part, settings.amounts(read)[1])
        return _scoring_flops(shape, window, kept + part - window)

    return None if settings.query_aware else _cost(settings, shape, work, score_flops)


def _h2o_cost(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of H2O (arXiv 2306.14048, algorithm 1).

    It is full attention twice, with a score for every slot. Evictions follow the prompt as a whole
    and every generated token.
    """
    cost = _cost(
        settings, shape, work, lambda part, kept, _: _scoring_flops(shape, part, kept), carried=1
    )
    if not work.chunk_tokens:
        return cost
    kept = cost.ask_slots - work.query_positions
    prompt = work.prompt_tokens
    step_shape = replace(shape, counts_masked_pairs=False)
    limit = settings.kept_tokens(shape.bos_tokens + work.tokens + prompt)
    first = min(kept + prompt, limit)
    generated = work.new_tokens - 1
    growing = min(limit - first, generated)
    full = first + growing
    flops = shape.forward_flops(prompt, kept) + _scoring_flops(shape, prompt, kept)
    flops += shape.head_flops(work.new_tokens)
    flops += step_shape.forward_flops(growing, first) + _scoring_flops(step_shape, growing, first)
    step_flops = step_shape.forward_flops(1, full) + _scoring_flops(step_shape, 1, full)
    flops += (generated - growing) * step_flops
    peak = max(kept + prompt, min(full + 1, kept + work.query_positions))
    return replace(cost, ask_slots=peak, ask_flops=flops)


def _window_cost(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of `window` (arXiv 2309.17453, section 3.2).

    A token of a stream attends to at most the kept slots.
    """
    if settings.mode == "postprefill":
        return _cost(replace(settings, positions="original"), shape, work, by_head=False)
    sinks = settings.amounts(work.tokens)[0]
    kept = settings.kept_tokens(work.tokens)
    if settings.mode == "stride" and work.chunk_tokens:
        return reread_cost(shape, work, min(kept, work.tokens))
    moved = _moves_keys(settings, shape)
    chunk = settings.chunk or STREAM_BLOCK_TOKENS
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    # scores of sinks are recomputed from queries at other positions
    sink_flops = 2 * shape.layers * shape.width * sinks if moved else 0
    stream = replace(settings, chunk=chunk, mode="stream")
    band = kept + 1 if settings.evict == "after" else kept
    return _cost(stream, shape, work, lambda part, *_: sink_flops * part, by_head=False, band=band)


def _h2o_budget(amount: Amount) -> dict[str, Json]:
    if isinstance(amount, float):
        return {"heavy": amount / 2, "recent": amount / 2}
    if amount < 2:
        raise ValueError(f"at least 2 tokens are needed (heavy and recent), got {amount}")
    return {"heavy": amount // 2, "recent": amount - amount // 2}


DEPRECATED_JOIN: dict[str, Json] = {"join": True}
"""Deprecated setting of all these methods."""
WINDOW = MethodSpec(
    name="window",
    summary="the first and the last tokens: StreamingLLM",
    import_path="ttabench.methods.eviction.window:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=_window_cost,
    # a share needs the number of tokens, which is known after reading
    keep=lambda amount: (
        as_budget(amount) | ({"mode": "postprefill"} if isinstance(amount, float) else {})
    ),
    test_settings=WindowSettings(n_sink=2, recent=10),
    deprecated_settings=DEPRECATED_JOIN,
    paper="2309.17453",
)
SNAPKV = MethodSpec(
    name="snapkv",
    summary="slots with the most attention from the end of the context",
    import_path="ttabench.methods.eviction.snapkv:SnapKV",
    Settings=SnapKVSettings,
    presets={
        "nano": SnapKVSettings(budget=256),
        "stream": SnapKVSettings(budget=512, chunk=512, positions="auto"),
        "streamadapter": SnapKVSettings(window=0.1, budget=0.2),
    },
    growth="constant",
    cost=_snapkv_cost,
    # the window takes at most half, so that its attention decides about the other half
    keep=lambda amount: {**as_budget(amount), "window_share": 0.5},
    test_settings=SnapKVSettings(budget=16, window=4),
    deprecated_settings={"group": "mean", **DEPRECATED_JOIN},
    paper="2404.14469",
)
H2O = MethodSpec(
    name="h2o",
    summary="slots with the most attention so far, and the last tokens",
    import_path="ttabench.methods.eviction.h2o:H2O",
    Settings=H2OSettings,
    presets={
        "streamadapter": H2OSettings(),
        "stream": H2OSettings(heavy=256, recent=256, chunk=512, positions="auto"),
    },
    growth="linear",
    cost=_h2o_cost,
    keep=_h2o_budget,
    test_settings=H2OSettings(heavy=8, recent=8),
    deprecated_settings={"evict_decode": True, **DEPRECATED_JOIN},
    paper="2306.14048",
)
KVZIP = MethodSpec(
    name="kvzip",
    summary="slots with the most attention when the text is repeated, over all layers and heads",
    import_path="ttabench.methods.eviction.kvzip:KVzip",
    Settings=KVzipSettings,
    growth="linear",
    keep=as_budget,
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
    import_path="ttabench.methods.eviction.kvzip:AttentionMatching",
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
RANDOM_SLOTS = MethodSpec(
    name="random_slots",
    summary="random slots: a control with the same memory",
    import_path="ttabench.methods.eviction.snapkv:RandomSlots",
    Settings=RandomSlotsSettings,
    presets={"stream": RandomSlotsSettings(budget=512, chunk=512, positions="auto")},
    growth="linear",
    cost=_cost,
    keep=as_budget,
    test_settings=RandomSlotsSettings(budget=16),
    deprecated_settings=DEPRECATED_JOIN,
)
METHODS = (WINDOW, SNAPKV, H2O, RANDOM_SLOTS, KVZIP, ATTENTION_MATCHING)
