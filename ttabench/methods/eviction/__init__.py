"""Methods that throw keys and values away: sliding windows, SnapKV, H2O, a random choice, and what they share."""

from __future__ import annotations

from ttabench.core.types import Json
from ttabench.methods.eviction import cost
from ttabench.methods.eviction.settings import (
    H2OSettings,
    KVzipSettings,
    MatchingSettings,
    RandomSlotsSettings,
    SnapKVSettings,
    WindowSettings,
)
from ttabench.methods.parts.amount import Amount, as_budget
from ttabench.methods.spec import MethodSpec


def _h2o_keeps(amount: Amount) -> dict[str, Json]:
    """Half of it each."""
    if isinstance(amount, float):
        return {"heavy": amount / 2, "recent": amount / 2}
    if amount < 2:
        raise ValueError(f"a heavy hitter and a recent token need at least 2 tokens, got {amount}")
    return {"heavy": amount // 2, "recent": amount - amount // 2}


WINDOW = MethodSpec(
    name="window",
    summary="the first and the last tokens: StreamingLLM",
    where="ttabench.methods.eviction.window:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=cost.window,
    # a share is known when all is read
    keep=lambda amount: as_budget(amount) | ({"mode": "postprefill"} if isinstance(amount, float) else {}),
    checked=WindowSettings(n_sink=2, recent=10),
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
        "class-default": SnapKVSettings(window=64, budget=320, kernel=5, pool="avg"),
        "init-default": SnapKVSettings(budget=2048, kernel=5, pool="avg"),
        "longbench-1024": SnapKVSettings(budget=1024),
        "longbench-2048": SnapKVSettings(budget=2048),
        "longbench-4096": SnapKVSettings(budget=4096),
    },
    growth="constant",
    cost=cost.snapkv,
    # at most half of it goes to the window, so that the attention which it pays decides about the other half
    keep=lambda amount: {**as_budget(amount), "window_share": 0.5},
    checked=SnapKVSettings(budget=16, window=4),
    retired={"group": "mean"},
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
    cost=cost.h2o,
    keep=_h2o_keeps,
    checked=H2OSettings(heavy=8, recent=8),
    paper="2306.14048",
)
KVZIP = MethodSpec(
    name="kvzip",
    summary="what the text's repetition attends to, of all layers and heads together",
    where="ttabench.methods.eviction.kvzip:KVzip",
    Settings=KVzipSettings,
    growth="linear",
    cost=cost.kvzip,
    keep=as_budget,
    checked=KVzipSettings(budget=12),
    retired={"score": "max"},
    paper="2505.23416",
)
ATTENTION_MATCHING = MethodSpec(
    name="attention_matching",
    summary="KVzip's slots, with biases and values that give full attention's output",
    where="ttabench.methods.eviction.attention_matching:AttentionMatching",
    Settings=MatchingSettings,
    growth="linear",
    cost=cost.attention_matching,
    keep=as_budget,
    checked=MatchingSettings(budget=12),
    retired={"score": "max", "keys": "kvzip", "queries": "repeat", "fit_bias": True, "fit_values": True, "seed": 0},
    paper="2602.16284",
)
RANDOM_SLOTS = MethodSpec(
    name="random_slots",
    summary="a random choice: a control at equal bytes",
    where="ttabench.methods.eviction.random_slots:RandomSlots",
    Settings=RandomSlotsSettings,
    presets={"stream": RandomSlotsSettings(budget=512, chunk=512, positions="auto")},
    growth="linear",
    cost=cost.random_slots,
    keep=as_budget,
    checked=RandomSlotsSettings(budget=16),
)
METHODS = (WINDOW, SNAPKV, H2O, RANDOM_SLOTS, KVZIP, ATTENTION_MATCHING)
