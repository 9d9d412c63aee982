"""What a run costs on paper: parameters, numbers and bytes kept, slots alive, operations, from published shapes alone.

    estimate("mac", settings, shape_of("llama-2-7b"), work).adapt_flops

One function a method, each with its source. `FORMULAS` also knows methods of the papers that ttabench does not have (or
not yet): nothing here needs a model, an implementation, or anything heavy to import.
"""

from __future__ import annotations

from collections.abc import Mapping

from ttabench.cost.adapted import camels, generative_adapter, sft
from ttabench.cost.amortised import mac
from ttabench.cost.cached import h2o, icl, none, snapkv, window
from ttabench.cost.compressed import break_even_tokens, ccm, compressive, gisting
from ttabench.cost.load import BYTES, Cost, Formula, Settings, Workload, workload
from ttabench.cost.lowrank import lora, templora
from ttabench.cost.retrieved import retrieval
from ttabench.cost.settings import overlaid
from ttabench.cost.shape import Shape, shape_from, shape_of
from ttabench.cost.streamed import streamadapter

__all__ = [
    "BYTES",
    "FORMULAS",
    "Cost",
    "Shape",
    "Workload",
    "break_even_tokens",
    "estimate",
    "overlaid",
    "shape_from",
    "shape_of",
    "workload",
]

_READING = {"join": True, "chunk": None, "positions": "original"}
_STREAM: Settings = {"chunk": 512, "positions": "auto"}
_LARGE_T5: Settings = {"amortiser": "t5-large"}
_MAC = {
    "amortiser": "t5-base",
    "input_encoder": "t5-base",
    "num_virtual_tokens": 24,
    "prefix_length": 2,
    "blocks": 4,
    "heads": 8,
    "head_dim": 96,
    "expansion_hidden": 768,
    "modulation": "prefix",
    "lora_rank": 8,
    "lora_targets": ("q_proj", "v_proj", "c_attn"),
    "document_tokens": 512,
    "question_tokens": 128,
    "pad_to": 0,
    "question_pad_to": 0,
    "bank_dtype": "bfloat16",
    "bank_cap": None,
    "hierarchy": None,
    "share_t5": False,
}
_MAC_PRESETS: Mapping[str, Settings] = {
    "nano": {
        "amortiser": "scratch:128,3,8,512",
        "input_encoder": "scratch:128,2,8,512",
        "num_virtual_tokens": 8,
        "head_dim": 16,
        "expansion_hidden": 128,
    },
    "distilgpt2": {"amortiser": "t5-small", "input_encoder": "t5-small", "num_virtual_tokens": 12},
    "gpt2-large": {},
    "gpt2-xl": _LARGE_T5,
    "llama-2-7b": _LARGE_T5,
}
_LORA: Settings = {"rank": 64, "targets": ()}
_STREAMADAPTER: Settings = {
    "queries": 16,
    "down": 32,
    "chunk": 128,
    "targets": (),
    "share_heads": True,
    "window": None,
    "stride": 512,
    "keep_cache": False,
    "merge": False,
}
_STREAMADAPTER_PRESETS: Mapping[str, Settings] = {
    "nano": {"down": 16, "chunk": 64},
    "stream": {"window": 1024, "merge": True},
    "phi-3-medium": {"queries": 48},
}
_COMPRESSED = {"comp_tokens": 8, "lora_rank": 8}

FORMULAS: Mapping[str, Formula] = {
    "none": Formula(cost=none),
    "icl": Formula(cost=icl, settings={"truncate": "error", "max_tokens": None}),
    "window": Formula(
        cost=window,
        settings={
            **_READING,
            "n_sink": 4,
            "recent": 512,
            "mode": "stream",
            "evict": "before",
            "positions": "auto",
        },
        paper="2309.17453",
    ),
    "snapkv": Formula(
        cost=snapkv,
        settings={**_READING, "budget": 1024, "window": 32, "query_aware": False},
        presets={"nano": {"budget": 256}, "stream": {"budget": 512, **_STREAM}},
        paper="2404.14469",
    ),
    "h2o": Formula(
        cost=h2o,
        settings={**_READING, "heavy": 0.1, "recent": 0.1, "evict_decode": True},
        presets={"stream": {"heavy": 256, "recent": 256, **_STREAM}},
        paper="2306.14048",
    ),
    "mac": Formula(cost=mac, settings=_MAC, presets=_MAC_PRESETS, paper="2403.04317"),
    "lora": Formula(
        cost=lora, settings=_LORA, presets={"nano": {"rank": 43}, "smollm2-135m": {"rank": 16}}, paper="2106.09685"
    ),
    "templora": Formula(cost=templora, settings={**_LORA, "epochs": 2, "prefix": 512}, paper="2401.11504"),
    "streamadapter": Formula(
        cost=streamadapter, settings=_STREAMADAPTER, presets=_STREAMADAPTER_PRESETS, paper="2411.09289"
    ),
    "ccm": Formula(cost=ccm, settings={**_COMPRESSED, "update": "concat"}, paper="2312.03414"),
    "gisting": Formula(cost=gisting, settings={**_COMPRESSED, "online": False}, paper="2304.08467"),
    "compressive": Formula(cost=compressive, settings=_COMPRESSED, paper="1911.05507"),
    "generative_adapter": Formula(
        cost=generative_adapter,
        settings={"inner": 1024, "rank": 128, "chunk": 1024, "finalize": False},
        presets={"nano": {"inner": 64, "rank": 8}},
        paper="2411.05877",
    ),
    "sft": Formula(cost=sft, settings={"document_epochs": 0}, paper="2411.05877"),
    "camels": Formula(cost=camels, settings={"weights": "camels", "document_tokens": 1024}, paper="2305.15076"),
    "retrieval": Formula(cost=retrieval, settings={"top_k": 3}),
}
"""By method, those that ttabench has first."""


def estimate(method: str, settings: Settings, shape: Shape, work: Workload) -> Cost | None:
    """The analytic cost of a method, None where no formula is known.

    Args:
        method: name of the method.
        settings: of the method; those no cost depends on may stand among them, missing ones have their defaults.
        shape: the base model.
        work: what is read and asked.
    """
    formula = FORMULAS.get(method)
    return formula.cost({**formula.settings, **settings}, shape, work) if formula else None
