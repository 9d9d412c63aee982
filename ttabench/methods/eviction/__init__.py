"""Methods that throw keys and values away, sliding windows, SnapKV, H2O, a random choice, and KVzip's: their settings.

Their cost follows an eviction part by part: what is read, what stays of it, and what watching attention takes.
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
"""Tokens a block of a stream has when `chunk` is not given, or as many as the model's positions allow."""


@dataclass(frozen=True, kw_only=True)
class EvictionSettings:
    """Settings of every method that evicts."""

    chunk: int | None = None
    """Evict after at most so many tokens (a text is cut into equal parts): bounds peak memory and positions."""
    positions: Literal["auto", "original", "cache"] = "original"
    """Kept keys stay at their places in the text, or move up to slots 0, 1, ... of the cache (rotary models only);
    auto: cache where the model is rotary."""

    def __post_init__(self) -> None:
        require_at_least(1, chunk=self.chunk)

    def kept_tokens(self, read: int) -> int:
        """Tokens that stay of so many that were read."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(EvictionSettings):
    """Settings of methods with one budget."""

    budget: Amount = 0.2
    """Tokens that stay in every layer and head, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)

    def kept_tokens(self, read: int) -> int:
        """The budget in tokens."""
        return in_tokens(self.budget, read)


@dataclass(frozen=True, kw_only=True)
class WindowSettings(EvictionSettings):
    """Settings of `window`; the defaults are StreamingLLM's."""

    n_sink: int = 4
    """First tokens of the text that always stay, BOS included; 0 is a plain sliding window. None with mode=stride."""
    recent: Amount = 512
    """Last tokens that stay; with mode=postprefill also their share of the tokens read."""
    budget: Amount | None = None
    """Slots in all, sinks included: `recent` is then what the sinks leave, which take half of it at most."""
    mode: Literal["stream", "postprefill", "stride"] = "stream"
    """Evict while reading; read everything with full attention and drop the middle afterwards; or read again what
    stays, from position 0."""
    evict: Literal["before", "after"] = "before"
    """A token of a stream sees `recent` tokens of the band with itself; or besides itself (the perplexity loop of the
    released code evicts after the token has been seen)."""
    positions: Literal["auto", "original", "cache"] = "auto"
    """As in every evicting method; auto: cache where the model is rotary, and original with mode=postprefill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, n_sink=self.n_sink)
        name, amount = ("recent", self.recent) if self.budget is None else ("budget", self.budget)
        check_amount(name, amount)
        if isinstance(amount, float) and self.mode != "postprefill":
            raise ValueError(
                f"a share needs mode=postprefill: a stream has no length yet, got {name}={amount}"
            )
        if self.mode == "stride" and amount < 2:
            raise ValueError(f"mode=stride keeps {name} - 1 tokens, got {name}={amount}")
        if (self.mode, self.positions) in (
            ("postprefill", "cache"),
            ("stride", "cache"),
            ("stride", "original"),
        ):
            raise ValueError(f"mode={self.mode} keeps no cache with positions={self.positions}")

    def amounts(self, read: int) -> tuple[int, int]:
        """Sinks and recent tokens that stay of so many that were read."""
        if self.budget is None:
            return self.n_sink, in_tokens(self.recent, read)
        kept = in_tokens(self.budget, read)
        sinks = 0 if self.mode == "stride" else min(self.n_sink, kept // 2)
        return sinks, kept - sinks

    def kept_tokens(self, read: int) -> int:
        """Sinks and recent tokens; with mode=stride one fewer, since the query brings one."""
        sinks, recent = self.amounts(read)
        return recent - 1 if self.mode == "stride" else recent + sinks


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(BudgetSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench configuration."""

    budget: Amount = 1024
    """Tokens kept in every layer, the window included; or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context (or their share of it), which observe and always stay. A last piece that is shorter
    observes with all its tokens."""
    window_share: float = 1.0
    """Largest share of the budget that the window takes."""
    kernel: int = 7
    """Slots whose scores are pooled around each one; odd."""
    pool: Literal["max", "avg"] = "max"
    """How they are pooled; averages count zeros beyond the ends."""
    query_aware: bool = False
    """The question is read behind the context before anything is evicted: its tokens end the window, and those it
    leaves free are the context's last, which stay. The state is then the full cache, and grows with the context;
    budget and shares are still those of the context."""

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
        """Budget and window in tokens, of so many that were read."""
        budget = self.kept_tokens(read)
        return budget, min(
            in_tokens(self.window, read), in_tokens(float(self.window_share), budget)
        )


@dataclass(frozen=True, kw_only=True)
class H2OSettings(EvictionSettings):
    """Settings of `h2o`; the defaults are the released code's.

    It evicts after the prompt, too, then one slot a token of the answer; shares are those of context and prompt.
    """

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head; or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept; or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)

    def amounts(self, read: int) -> tuple[int, int]:
        """Heavy hitters and recent tokens that stay of so many that were read."""
        return in_tokens(self.heavy, read), in_tokens(self.recent, read)

    def kept_tokens(self, read: int) -> int:
        """Both."""
        return sum(self.amounts(read))


@dataclass(frozen=True, kw_only=True)
class RandomSlotsSettings(BudgetSettings):
    """Settings of `random_slots`."""

    seed: int = 0
    """Of the choice, in which the first token of the text always stays."""


@dataclass(frozen=True, kw_only=True)
class KVzipSettings(BudgetSettings):
    """Settings of `kvzip` and `attention_matching`; the defaults are the released code's."""

    budget: Amount = 0.2
    """Slots kept, as their share of the tokens read or as a number of tokens, of all layers and heads together."""
    repeat_chunk: int = 2048
    """Tokens of the text that are repeated at once; fewer where the model's positions leave no room."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, repeat_chunk=self.repeat_chunk)
        if self.positions != "original":
            raise ValueError(
                f"keys stay where they stood in the text, got positions={self.positions}"
            )


def split_evenly(tokens: int, chunk: int | None) -> list[range]:
    """Places of the parts of a text, of like length and at most `chunk`, after which something is evicted."""
    count = -(-tokens // (chunk or max(1, tokens)))
    return [
        range(tokens * number // count, tokens * (number + 1) // count) for number in range(count)
    ]


def _moves_keys(settings: EvictionSettings, shape: Shape) -> bool:
    """Whether kept keys move up to slots 0, 1, ..."""
    rotary = shape.model_type not in EXTRA_LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)


def _cost(
    settings: EvictionSettings,
    shape: Shape,
    work: Workload,
    watching: Callable[[int, int, int], int] = lambda *_: 0,
    *,
    carried: int = 0,
    by_head: bool = True,
    band: int | None = None,
) -> Cost:
    """Read part after part on top of what is left. `watching`: operations of a part of so many tokens, behind so many
    slots, with so many tokens read; `carried`: float32 numbers that a slot of a layer and head carries along;
    `by_head`: whether layers and heads keep different slots; `band`: positions a token attends to at most."""
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    kept = read = flops = peak = 0
    shared = True
    for part in map(len, split_evenly(shape.bos_tokens + work.tokens, settings.chunk)):
        read += part
        flops += shape.forward_flops(part, kept, band) + watching(part, kept, read)
        peak = max(peak, kept + part)
        shared = shared and (not by_head or kept + part <= settings.kept_tokens(read))
        kept = min(kept + part, settings.kept_tokens(read))
    heads, floats = shape.layers * shape.kv_heads, shape.slot_floats * kept
    places, scores = kept * (1 if shared else heads), carried * heads * kept
    return window_cost(
        shape,
        work,
        kept,
        state_floats=floats + scores,
        state_bytes=floats * work.value_bytes + FLOAT32_BYTES * (places + scores) + INT64_BYTES,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=max(peak, kept + work.query_positions)
        if _moves_keys(settings, shape)
        else read + work.query_positions,
    )


def _watching_flops(shape: Shape, queries: int, context: int) -> int:
    """Scores of these queries once more, and their sum over queries (`ColumnSums`)."""
    return (
        shape.layers
        * shape.heads
        * (2 * shape.head_dim + 2)
        * shape.attended_pairs(queries, context)
    )


def _snapkv_cost(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost | None:
    """SnapKV (arXiv 2404.14469, section 4): full attention, and that of the last `window` tokens once more; of
    `query_aware` no cost is known."""

    def watching(part: int, kept: int, read: int) -> int:
        window = min(part, settings.amounts(read)[1])
        return _watching_flops(shape, window, kept + part - window)

    return None if settings.query_aware else _cost(settings, shape, work, watching)


def _h2o_cost(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """H2O (arXiv 2306.14048, algorithm 1): full attention, and all of it once more; a score stays with every slot. The
    same of the prompt, which is evicted from as a whole, and of every token that is written."""
    cost = _cost(
        settings, shape, work, lambda part, kept, _: _watching_flops(shape, part, kept), carried=1
    )
    if not work.chunk_tokens:
        return cost
    kept, prompt, one = (
        cost.ask_slots - work.query_positions,
        work.prompt_tokens,
        replace(shape, counts_masked_pairs=False),
    )
    most = settings.kept_tokens(shape.bos_tokens + work.tokens + prompt)
    first, written = min(kept + prompt, most), work.new_tokens - 1
    growing = min(most - first, written)
    full, rest = first + growing, written - growing
    flops = (
        shape.forward_flops(prompt, kept)
        + _watching_flops(shape, prompt, kept)
        + shape.head_flops(work.new_tokens)
    )
    flops += one.forward_flops(growing, first) + _watching_flops(one, growing, first)
    flops += rest * (one.forward_flops(1, full) + _watching_flops(one, 1, full))
    peak = max(kept + prompt, min(full + 1, kept + work.query_positions))
    return replace(cost, ask_slots=peak, ask_flops=flops)


def _window_cost(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Sinks and recent tokens (arXiv 2309.17453, section 3.2): a token of a stream attends to no more than is kept."""
    if settings.mode == "postprefill":
        return _cost(replace(settings, positions="original"), shape, work, by_head=False)
    sinks, kept = settings.amounts(work.tokens)[0], settings.kept_tokens(work.tokens)
    if settings.mode == "stride" and work.chunk_tokens:
        return reread_cost(shape, work, min(kept, work.tokens))
    moved, chunk = _moves_keys(settings, shape), settings.chunk or STREAM_BLOCK_TOKENS
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    turned = (
        2 * shape.layers * shape.width * sinks if moved else 0
    )  # scores of sinks, from turned queries
    cut, band = replace(settings, chunk=chunk, mode="stream"), kept + (settings.evict == "after")
    return _cost(cut, shape, work, lambda part, *_: turned * part, by_head=False, band=band)


def _h2o_budget(amount: Amount) -> dict[str, Json]:
    """Half of it each."""
    if isinstance(amount, float):
        return {"heavy": amount / 2, "recent": amount / 2}
    if amount < 2:
        raise ValueError(f"a heavy hitter and a recent token need at least 2 tokens, got {amount}")
    return {"heavy": amount // 2, "recent": amount - amount // 2}


DEPRECATED_JOIN: dict[str, Json] = {"join": True}
"""A setting that is gone, of all methods."""
WINDOW = MethodSpec(
    name="window",
    summary="the first and the last tokens: StreamingLLM",
    import_path="ttabench.methods.eviction.window:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=_window_cost,
    # a share is known when all is read
    keep=lambda amount: (
        as_budget(amount) | ({"mode": "postprefill"} if isinstance(amount, float) else {})
    ),
    test_settings=WindowSettings(n_sink=2, recent=10),
    deprecated_settings=DEPRECATED_JOIN,
    paper="2309.17453",
)
SNAPKV = MethodSpec(
    name="snapkv",
    summary="what the end of the context attends to",
    import_path="ttabench.methods.eviction.snapkv:SnapKV",
    Settings=SnapKVSettings,
    presets={
        "nano": SnapKVSettings(budget=256),
        "stream": SnapKVSettings(budget=512, chunk=512, positions="auto"),
        "streamadapter": SnapKVSettings(window=0.1, budget=0.2),
    },
    growth="constant",
    cost=_snapkv_cost,
    # at most half of it goes to the window, so that the attention which it pays decides about the other half
    keep=lambda amount: {**as_budget(amount), "window_share": 0.5},
    test_settings=SnapKVSettings(budget=16, window=4),
    deprecated_settings={"group": "mean", **DEPRECATED_JOIN},
    paper="2404.14469",
)
H2O = MethodSpec(
    name="h2o",
    summary="what received most attention, and the latest",
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
    summary="what the text's repetition attends to, of all layers and heads together",
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
    summary="KVzip's slots, with biases and values that give full attention's output",
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
    summary="a random choice: a control at equal bytes",
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
