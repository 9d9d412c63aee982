"""Methods that throw keys and values away: sliding windows, SnapKV, H2O, a random choice, and KVzip's.

Their cost follows an eviction part by part: what is read, what stays of it, and what watching attention takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ttabench.core.types import Json
from ttabench.cost import INTEGER, LEARNED_POSITIONS, SINGLE, Cost, Shape, Workload, closed_book, in_window, read_again
from ttabench.methods.eviction.settings import (
    STREAM_BLOCK,
    H2OSettings,
    KVzipSettings,
    RandomSlotsSettings,
    ReadingSettings,
    SnapKVSettings,
    WindowSettings,
)
from ttabench.methods.parts.settings import Amount, as_budget
from ttabench.methods.spec import MethodSpec


def _parts(settings: ReadingSettings, shape: Shape, work: Workload) -> list[int]:
    """Tokens of the parts after which something is evicted, as `EvictingMethod` cuts them."""
    text = shape.starts + work.tokens
    count = 1 if settings.chunk is None else -(-text // settings.chunk)
    return [text * (number + 1) // count - text * number // count for number in range(count)]


def _moved(settings: ReadingSettings, shape: Shape) -> bool:
    """Whether kept keys move up to slots 0, 1, ..."""
    rotary = shape.model_type not in LEARNED_POSITIONS
    return settings.positions == "cache" or (settings.positions == "auto" and rotary)


def _cost(
    settings: ReadingSettings,
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
    if not work.pieces:
        return closed_book(shape, work)
    kept = read = flops = peak = 0
    shared = True
    for part in _parts(settings, shape, work):
        read += part
        flops += shape.forward(part, kept, band) + watching(part, kept, read)
        peak = max(peak, kept + part)
        shared = shared and (not by_head or kept + part <= settings.kept(read))
        kept = min(kept + part, settings.kept(read))
    heads, floats = shape.layers * shape.kv_heads, shape.slot_floats * kept
    places, scores = kept * (1 if shared else heads), carried * heads * kept
    return in_window(
        shape,
        work,
        kept,
        state_floats=floats + scores,
        state_bytes=floats * work.value_bytes + SINGLE * (places + scores) + INTEGER,
        adapt_slots=peak,
        adapt_flops=flops,
        positions=max(peak, kept + work.asked) if _moved(settings, shape) else read + work.asked,
    )


def _watched(shape: Shape, queries: int, context: int) -> int:
    """Scores of these queries once more, and their sum over queries (`ColumnSums`)."""
    return shape.layers * shape.heads * (2 * shape.head_dim + 2) * shape.pairs(queries, context)


def _snapkv(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost | None:
    """SnapKV (arXiv 2404.14469, section 4): full attention, and that of the last `window` tokens once more; of
    `query_aware` no cost is known."""

    def watching(part: int, kept: int, read: int) -> int:
        window = min(part, settings.amounts(read)[1])
        return _watched(shape, window, kept + part - window)

    return None if settings.query_aware else _cost(settings, shape, work, watching)


def _h2o(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """H2O (arXiv 2306.14048, algorithm 1): full attention, and all of it once more; a score stays with every slot. The
    same of the prompt, which is evicted from as a whole, and of every token that is written."""
    cost = _cost(settings, shape, work, lambda part, kept, _: _watched(shape, part, kept), carried=1)
    if not work.pieces:
        return cost
    kept, prompt, one = cost.ask_slots - work.asked, work.prompt_tokens, replace(shape, dense=False)
    most = settings.kept(shape.starts + work.tokens + prompt)
    first, written = min(kept + prompt, most), work.new_tokens - 1
    growing = min(most - first, written)
    full, rest = first + growing, written - growing
    flops = shape.forward(prompt, kept) + _watched(shape, prompt, kept) + shape.head(work.new_tokens)
    flops += one.forward(growing, first) + _watched(one, growing, first)
    flops += rest * (one.forward(1, full) + _watched(one, 1, full))
    peak = max(kept + prompt, min(full + 1, kept + work.asked))
    return replace(cost, ask_slots=peak, ask_flops=flops)


def _window(settings: WindowSettings, shape: Shape, work: Workload) -> Cost:
    """Sinks and recent tokens (arXiv 2309.17453, section 3.2): a token of a stream attends to no more than is kept."""
    if settings.mode == "postprefill":
        return _cost(replace(settings, positions="original"), shape, work, by_head=False)
    sinks, kept = settings.amounts(work.tokens)[0], settings.kept(work.tokens)
    if settings.mode == "stride" and work.pieces:
        return read_again(shape, work, min(kept, work.tokens))
    moved, chunk = _moved(settings, shape), settings.chunk or STREAM_BLOCK
    if moved and shape.positions is not None:
        chunk = min(chunk, max(1, shape.positions - kept))
    turned = 2 * shape.layers * shape.width * sinks if moved else 0  # scores of sinks, from turned queries
    cut, band = replace(settings, chunk=chunk, mode="stream"), kept + (settings.evict == "after")
    return _cost(cut, shape, work, lambda part, *_: turned * part, by_head=False, band=band)


def _h2o_keeps(amount: Amount) -> dict[str, Json]:
    """Half of it each."""
    if isinstance(amount, float):
        return {"heavy": amount / 2, "recent": amount / 2}
    if amount < 2:
        raise ValueError(f"a heavy hitter and a recent token need at least 2 tokens, got {amount}")
    return {"heavy": amount // 2, "recent": amount - amount // 2}


JOINED: dict[str, Json] = {"join": True}
"""A setting that is gone, of all methods."""
WINDOW = MethodSpec(
    name="window",
    summary="the first and the last tokens: StreamingLLM",
    where="ttabench.methods.eviction.window:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=_window,
    # a share is known when all is read
    keep=lambda amount: as_budget(amount) | ({"mode": "postprefill"} if isinstance(amount, float) else {}),
    checked=WindowSettings(n_sink=2, recent=10),
    retired=JOINED,
    paper="2309.17453",
)
SNAPKV = MethodSpec(
    name="snapkv",
    summary="what the end of the context attends to",
    where="ttabench.methods.eviction.snapkv:SnapKV",
    Settings=SnapKVSettings,
    presets={
        "nano": SnapKVSettings(budget=256),
        "stream": SnapKVSettings(budget=512, chunk=512, positions="auto"),
        "streamadapter": SnapKVSettings(window=0.1, budget=0.2),
    },
    growth="constant",
    cost=_snapkv,
    # at most half of it goes to the window, so that the attention which it pays decides about the other half
    keep=lambda amount: {**as_budget(amount), "window_share": 0.5},
    checked=SnapKVSettings(budget=16, window=4),
    retired={"group": "mean", **JOINED},
    paper="2404.14469",
)
H2O = MethodSpec(
    name="h2o",
    summary="what received most attention, and the latest",
    where="ttabench.methods.eviction.h2o:H2O",
    Settings=H2OSettings,
    presets={
        "streamadapter": H2OSettings(),
        "stream": H2OSettings(heavy=256, recent=256, chunk=512, positions="auto"),
    },
    growth="linear",
    cost=_h2o,
    keep=_h2o_keeps,
    checked=H2OSettings(heavy=8, recent=8),
    retired={"evict_decode": True, **JOINED},
    paper="2306.14048",
)
KVZIP = MethodSpec(
    name="kvzip",
    summary="what the text's repetition attends to, of all layers and heads together",
    where="ttabench.methods.eviction.kvzip:KVzip",
    Settings=KVzipSettings,
    growth="linear",
    keep=as_budget,
    checked=KVzipSettings(budget=12),
    retired={
        **JOINED,
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
    where="ttabench.methods.eviction.kvzip:AttentionMatching",
    retired={
        **KVZIP.retired,
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
    where="ttabench.methods.eviction.snapkv:RandomSlots",
    Settings=RandomSlotsSettings,
    presets={"stream": RandomSlotsSettings(budget=512, chunk=512, positions="auto")},
    growth="linear",
    cost=_cost,
    keep=as_budget,
    checked=RandomSlotsSettings(budget=16),
    retired=JOINED,
)
METHODS = (WINDOW, SNAPKV, H2O, RANDOM_SLOTS, KVZIP, ATTENTION_MATCHING)
