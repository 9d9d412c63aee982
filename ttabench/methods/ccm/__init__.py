"""Settings, presets, training recipes and analytic cost of CCM and the methods it is compared with.

CCM (compressed context memory) turns a text into the keys and values of a few slots. Kim et al.,
"Compressed Context Memory for Online Language Model Interaction", arXiv 2312.03414; code:
snu-mllab/Context-Memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    INT64_BYTES,
    Cost,
    LowRankFactors,
    Shape,
    Workload,
    closed_book_cost,
    select_linears,
    window_cost,
)
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec, Recipe, Stage


@dataclass(frozen=True, kw_only=True)
class AttentionLoraSettings(LoraShape):
    """Settings of a LoRA on the attention projections."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    """Last parts of the names of the adapted linear maps. Empty: the attention projections (q, k,
    v, o)."""


@dataclass(frozen=True, kw_only=True)
class GistingSettings(AttentionLoraSettings):
    """Settings of `gisting` and `gisting_online`; the defaults are CCM's comparison on MetaICL."""

    comp_tokens: int = 8
    """Number n of COMP tokens. Their keys and values are the compressed form of the text that they
    read."""
    conditional: bool = True
    """True if the deltas act at COMP tokens only. False: they act at every token, including queries
    and answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, comp_tokens=self.comp_tokens)


@dataclass(frozen=True, kw_only=True)
class CcmSettings(GistingSettings):
    """Settings of `ccm`; the defaults are the paper's for MetaICL."""

    update: Literal["concat", "merge"] = "concat"
    """concat: the memory keeps the slots of every chunk. merge: it keeps their mean."""
    recursive: bool = True
    """True if a chunk and its COMP tokens attend to the memory so far. False: they attend to
    themselves only."""
    sink: bool = False
    """True if the first token of the text stays visible after the first chunk."""
    window: int | None = None
    """Maximum keys and values kept for a stream: first tokens, memory and newest text. When they
    are exceeded, the oldest `piece` of text is compressed. None: every chunk that is read
    becomes memory."""
    piece: int = 64
    """Tokens of a stream that are compressed at once."""
    memory: int = 8
    """COMP slots that a stream keeps; the oldest are dropped."""
    n_sink: int | None = None
    """First tokens of a stream that are never dropped. None: the start tokens (BOS), or the first
    token without them."""
    compress: bool = True
    """False: a stream drops old slots without compressing them, and keeps the first and the newest
    (StreamingLLM)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, piece=self.piece, memory=self.memory)
        require_at_least(0, n_sink=self.n_sink)
        if self.window is None:
            if not self.compress or self.n_sink is not None:
                raise ValueError(
                    "compress=false and n_sink need a stream. Set window, or use sink for n_sink"
                )
            return
        if self.update != "concat" or not self.recursive:
            raise ValueError(
                "a stream does not support update=merge or recursive=false. Remove them, or window"
            )
        if self.memory % self.comp_tokens or self.comp_tokens >= self.piece:
            given = f"memory={self.memory}, comp_tokens={self.comp_tokens}, piece={self.piece}"
            raise ValueError(
                f"memory must be a multiple of comp_tokens, and comp_tokens < piece, got {given}"
            )


@dataclass(frozen=True, kw_only=True)
class CompressiveSettings(AttentionLoraSettings):
    """Settings of `compressive`; the deltas act at chunks, not at queries and answers."""

    ratio: int = 8
    """Size of the learned convolution. Without `slots`, so many tokens are pooled into one slot;
    the last slot of a chunk may pool fewer."""
    slots: int | None = None
    """Slots of each chunk, whatever its length. A chunk of fewer tokens has one slot per token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, ratio=self.ratio, slots=self.slots)


_BASE_RECIPE = Recipe(schedule="cosine", beta2=0.98, clip=1.0, warmup=20)
_PAPER_RECIPE = Recipe(
    documents=(16,), batch_documents=2048, steps=2000, lr=3e-4, warmup=60, schedule="cosine"
)
_NANO_RECIPE = replace(
    _BASE_RECIPE,
    documents=(2, 4, 8, 16),
    rounds=100,
    batch_documents=128,
    questions=1,
    steps=400,
    lr=3e-3,
    optimizer="muon",
)
_SMOLLM2_RECIPE = replace(
    _BASE_RECIPE, documents=(12,), batch_documents=96, steps=150, lr=2e-3, warmup=10
)
_FULL_CONTEXT_LORA = {
    "rank": 8,
    "alpha": 16,
    "targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "full_context": True,
}
_TWO_STAGE_RECIPE = replace(
    _PAPER_RECIPE, first=Stage(settings=_FULL_CONTEXT_LORA, recipe=_PAPER_RECIPE)
)


def ccm_cost(settings: CcmSettings, shape: Shape, work: Workload) -> Cost | None:
    """Cost of CCM (arXiv 2312.03414, equations 1 to 3, figure 5 and table 3).

    None for streams, and for deltas at every token (`conditional=false`). The paper's "MB" are MiB
    at 4 bytes a number, without BOS. The operations of merging and of means are not counted.
    """
    comp_tokens = settings.comp_tokens
    sink = shape.bos_tokens if settings.sink else 0
    kept_slots = 0
    steps = list[tuple[int, int]]()
    for chunk in work.chunk_tokens:
        slots_before = shape.bos_tokens if not steps else kept_slots if settings.recursive else sink
        kept_slots = comp_tokens + (kept_slots if settings.update == "concat" and steps else sink)
        steps.append((chunk, slots_before))
    return None if settings.window else _comp_token_cost(settings, shape, work, steps, kept_slots)


def gisting_cost(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Cost of Gisting (arXiv 2304.08467, as in 2312.03414, section 4).

    Everything read so far is compressed again whenever more is read.
    """
    steps = [(work.tokens, shape.bos_tokens)] if work.tokens else []
    return _comp_token_cost(settings, shape, work, steps, settings.comp_tokens, 2 + work.tokens)


def gisting_online_cost(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Cost of Gisting with each chunk alone (arXiv 2312.03414, section 4).

    The start tokens precede the first chunk. Slots kept while a later chunk is compressed are not
    counted, as in the paper.
    """
    steps = [
        (chunk, 0 if index else shape.bos_tokens) for index, chunk in enumerate(work.chunk_tokens)
    ]
    return _comp_token_cost(settings, shape, work, steps, settings.comp_tokens * len(steps))


def _comp_token_cost(
    settings: GistingSettings,
    shape: Shape,
    work: Workload,
    segments: list[tuple[int, int]],
    kept_slots: int,
    stored_integers: int = 1,
) -> Cost | None:
    """Cost of COMP tokens after `segments` (tokens, slots before them), with `kept_slots` kept.

    None if deltas act at every token. With `counts_masked_pairs`, the factors are also counted at
    text tokens, where they are computed and masked.
    """
    comp_tokens = settings.comp_tokens
    maps = (
        select_linears(settings.targets, shape)
        if settings.targets
        else list(shape.attention_linears)
    )
    factors = LowRankFactors(shape, settings.rank, maps)
    added_parameters = factors.size + comp_tokens * shape.hidden
    if not settings.conditional:
        return None
    if not segments:
        return replace(closed_book_cost(shape, work), added_parameters=added_parameters)
    flops = shape.forward_flops(shape.bos_tokens) + sum(
        shape.forward_flops(tokens + comp_tokens, before)
        + factors.forward_flops(comp_tokens + (tokens if shape.counts_masked_pairs else 0))
        for tokens, before in segments
    )
    return window_cost(
        shape,
        work,
        kept_slots,
        added_parameters=added_parameters,
        state_floats=shape.slot_floats * kept_slots,
        state_bytes=work.kv_bytes(shape, kept_slots) + INT64_BYTES * stored_integers,
        adapt_slots=max(tokens + comp_tokens + before for tokens, before in segments),
        adapt_flops=flops,
        positions=shape.bos_tokens + work.tokens + max(comp_tokens, work.query_positions),
    )


CCM = MethodSpec(
    name="ccm",
    summary="keys and values of a few COMP tokens that read each chunk",
    import_path="ttabench.methods.ccm.method:Ccm",
    Settings=CcmSettings,
    presets={
        "nano": CcmSettings(comp_tokens=4, rank=32, alpha=32.0),
        "nano-merge": CcmSettings(comp_tokens=4, rank=32, alpha=32.0, update="merge"),
        "smollm2-135m": CcmSettings(comp_tokens=2),
        "smollm2-135m-merge": CcmSettings(comp_tokens=2, update="merge"),
        "llama-7b": CcmSettings(),
        "llama-7b-merge": CcmSettings(update="merge"),
    },
    # Paper: batches of 128, AdamW, learning rate 3e-4, cosine schedule, warm-up 3 %. Steps: 2,000
    # on MetaICL, 300 on LaMP, 1,000 on DailyDialog, each after a LoRA with full context on the same
    # data.
    recipes={
        "nano": _NANO_RECIPE,
        "nano-merge": _NANO_RECIPE,
        "smollm2-135m": _SMOLLM2_RECIPE,
        "smollm2-135m-merge": _SMOLLM2_RECIPE,
        "llama-7b": _TWO_STAGE_RECIPE,
        "llama-7b-merge": _TWO_STAGE_RECIPE,
    },
    growth="linear",
    trainable=True,
    cost=ccm_cost,
    test_settings=CcmSettings(comp_tokens=2, rank=2),
    paper="2312.03414",
    deprecated_settings={"held": None, "ema": None},
)
GISTING = replace(
    CCM,
    name="gisting",
    summary="keys and values of a few COMP tokens that read everything at once",
    import_path="ttabench.methods.ccm.method:Gisting",
    Settings=GistingSettings,
    presets={
        "nano": GistingSettings(comp_tokens=4, rank=32, alpha=32.0),
        "smollm2-135m": GistingSettings(comp_tokens=2),
        "llama-7b": GistingSettings(),
    },
    recipes={name: CCM.recipes[name] for name in ("nano", "smollm2-135m", "llama-7b")},
    cost=gisting_cost,
    test_settings=GistingSettings(comp_tokens=2, rank=2),
    paper="2304.08467",
    deprecated_settings={},
)
GISTING_ONLINE = replace(
    GISTING,
    name="gisting_online",
    summary="Gisting of each chunk alone",
    import_path="ttabench.methods.ccm.method:GistingOnline",
    shares_checkpoints_with="gisting",
    cost=gisting_online_cost,
)
COMPRESSIVE = replace(
    GISTING,
    name="compressive",
    summary="Compressive Transformer: pooled keys and values of each chunk",
    import_path="ttabench.methods.ccm.compressive:Compressive",
    Settings=CompressiveSettings,
    presets={
        "nano": CompressiveSettings(rank=32, alpha=32.0),
        **dict.fromkeys(("smollm2-135m", "llama-7b"), CompressiveSettings()),
    },
    cost=None,
    test_settings=CompressiveSettings(rank=2, ratio=4),
    paper="1911.05507",
    deprecated_settings={"pool": "conv"},
)
METHODS = (CCM, GISTING, GISTING_ONLINE, COMPRESSIVE)
