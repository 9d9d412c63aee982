"""Methods that throw keys and values away: sliding windows, SnapKV, H2O, and what they share."""

from __future__ import annotations

from ttabench.methods.eviction import cost
from ttabench.methods.eviction.settings import H2OSettings, SnapKVSettings, WindowSettings
from ttabench.methods.spec import MethodSpec

WINDOW = MethodSpec(
    name="window",
    summary="the first and the last tokens: StreamingLLM",
    where="ttabench.methods.eviction.window:SlidingWindow",
    Settings=WindowSettings,
    presets={"book": WindowSettings(mode="stride", n_sink=0)},
    growth="constant",
    cost=cost.window,
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
    checked=SnapKVSettings(budget=16, window=4),
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
    checked=H2OSettings(heavy=8, recent=8),
    paper="2306.14048",
)
METHODS = (WINDOW, SNAPKV, H2O)
