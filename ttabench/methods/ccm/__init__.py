"""CCM, compressed context memory, and what it is compared with: a text becomes keys and values of a few slots.

Settings (those of the paper), presets, how each is trained, and cost on paper. Kim et al., "Compressed Context Memory
for Online Language Model Interaction", arXiv 2312.03414; code: snu-mllab/Context-Memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.cost import INTEGER, Cost, Factors, Shape, Workload, closed_book, in_window, targeted
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec, Recipe, Stage


@dataclass(frozen=True, kw_only=True)
class AttentionLora(LoraShape):
    """A LoRA on the maps of attention."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    """Last parts of the names of the adapted linear maps; none means those of attention (q, k, v, o)."""


@dataclass(frozen=True, kw_only=True)
class GistingSettings(AttentionLora):
    """Settings of `gisting` and `gisting_online`; the defaults are those of CCM's comparison on MetaICL."""

    comp_tokens: int = 8
    """n: COMP tokens; their keys and values are what the text that they read becomes."""
    conditional: bool = True
    """Whether the deltas act at COMP tokens only; false: at every token, those of questions and answers too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, comp_tokens=self.comp_tokens)


@dataclass(frozen=True, kw_only=True)
class CcmSettings(GistingSettings):
    """Settings of `ccm`; the defaults are the paper's for MetaICL."""

    update: Literal["concat", "merge"] = "concat"
    """Whether the memory keeps what every piece became, or their mean, slot by slot."""
    recursive: bool = True
    """Whether a piece and its COMP tokens see the memory so far; false: they see themselves alone."""
    sink: bool = False
    """Whether the token that begins the text stays visible after the first piece."""
    window: int | None = None
    """A stream: so many keys and values are held, of what begins the text, of the memory and of the newest text; with a
    token more the oldest `piece` of the text is compressed. None: every piece that is read becomes memory."""
    piece: int = 64
    """Tokens of a stream that are compressed at once."""
    memory: int = 8
    """COMP slots that a stream keeps; the oldest go."""
    n_sink: int | None = None
    """First tokens of a stream that always stay. None: what begins a text (BOS), or else its first token."""
    compress: bool = True
    """False: a stream throws as many slots away, and what stays are the first and the newest (StreamingLLM)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, piece=self.piece, memory=self.memory)
        at_least(0, n_sink=self.n_sink)
        if self.window is None:
            if not self.compress or self.n_sink is not None:
                raise ValueError("compress=false and n_sink are of a stream: give window, too (or sink for n_sink)")
            return
        if self.update != "concat" or not self.recursive:
            raise ValueError("a stream (window) has a memory that is concatenated, and seen by what is compressed")
        if self.memory % self.comp_tokens or self.comp_tokens >= self.piece:
            given = f"memory={self.memory}, comp_tokens={self.comp_tokens}, piece={self.piece}"
            raise ValueError(f"a stream keeps whole groups of comp_tokens, fewer than a piece, got {given}")


@dataclass(frozen=True, kw_only=True)
class CompressiveSettings(AttentionLora):
    """Settings of `compressive`; the deltas act at the tokens of pieces, not at questions and answers."""

    ratio: int = 8
    """Tokens whose keys and values become one slot, by a learned convolution; the last ones of a piece may be fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, ratio=self.ratio)


_OURS = Recipe(schedule="cosine", beta2=0.98, clip=1.0, warmup=20)
_PAPER = Recipe(documents=(16,), batch_documents=2048, steps=2000, lr=3e-4, warmup=60, schedule="cosine")
_NANO = replace(
    _OURS, documents=(2, 4, 8, 16), rounds=100, batch_documents=128, questions=1, steps=400, lr=3e-3, optimizer="muon"
)
_REAL = replace(_OURS, documents=(12,), batch_documents=96, steps=150, lr=2e-3, warmup=10)
_FULL_CONTEXT = ("rank=8", "alpha=16", "targets=q_proj,k_proj,v_proj,o_proj", "full_context=true")
_TWO_STAGES = replace(_PAPER, first=Stage(settings=_FULL_CONTEXT, recipe=_PAPER))


def ccm_cost(settings: CcmSettings, shape: Shape, work: Workload) -> Cost | None:
    """CCM (arXiv 2312.03414, equations 1 to 3, figure 5 and table 3); None of a stream, and where deltas act at every
    token (`conditional=false`). The paper's "MB" are MiB at 4 bytes a number, and count no BOS; merging and means are
    left out."""
    comp, sink, held, steps = settings.comp_tokens, shape.starts if settings.sink else 0, 0, list[tuple[int, int]]()
    for piece in work.pieces:
        before = shape.starts if not steps else held if settings.recursive else sink
        held = comp + (held if settings.update == "concat" and steps else sink)
        steps.append((piece, before))
    return None if settings.window else _comp_tokens(settings, shape, work, steps, held)


def gisting_cost(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Gisting (arXiv 2304.08467, as in 2312.03414, section 4): whatever is read on, everything is compressed again."""
    steps = [(work.tokens, shape.starts)] if work.tokens else []
    return _comp_tokens(settings, shape, work, steps, settings.comp_tokens, 2 + work.tokens)


def gisting_online_cost(settings: GistingSettings, shape: Shape, work: Workload) -> Cost | None:
    """Gisting, each piece alone (arXiv 2312.03414, section 4); what begins the text stands before the first. Slots
    that wait beside a piece being compressed are not counted, as in the paper."""
    steps = [(piece, 0 if number else shape.starts) for number, piece in enumerate(work.pieces)]
    return _comp_tokens(settings, shape, work, steps, settings.comp_tokens * len(steps))


def _comp_tokens(
    settings: GistingSettings, shape: Shape, work: Workload, texts: list[tuple[int, int]], kept: int, integers: int = 1
) -> Cost | None:
    """Of COMP tokens behind texts (tokens, slots before them), and the slots that are kept; None where deltas act at
    every token. `dense` counts the factors at the tokens of text, too, which are computed and left out."""
    comp = settings.comp_tokens
    maps = targeted(settings.targets, shape) if settings.targets else list(shape.attention_linears)
    factors = Factors(shape, settings.rank, maps)
    added = factors.size + comp * shape.hidden
    if not settings.conditional:
        return None
    if not texts:
        return replace(closed_book(shape, work), added_parameters=added)
    flops = sum(shape.forward(text + comp, before) for text, before in texts) + shape.forward(shape.starts)
    flops += sum(factors.forward(comp + (text if shape.dense else 0)) for text, _ in texts)
    return in_window(
        shape,
        work,
        kept,
        added_parameters=added,
        state_floats=shape.slot_floats * kept,
        state_bytes=shape.cache_bytes(kept, work.value_bytes) + INTEGER * integers,
        adapt_slots=max(text + comp + before for text, before in texts),
        adapt_flops=flops,
        positions=shape.starts + work.tokens + max(comp, work.asked),
    )


CCM = MethodSpec(
    name="ccm",
    summary="keys and values of a few COMP tokens that read each piece",
    where="ttabench.methods.ccm.method:Ccm",
    Settings=CcmSettings,
    presets={
        "nano": CcmSettings(comp_tokens=4, rank=32, alpha=32.0),
        "nano-merge": CcmSettings(comp_tokens=4, rank=32, alpha=32.0, update="merge"),
        "smollm2-135m": CcmSettings(comp_tokens=2),
        "smollm2-135m-merge": CcmSettings(comp_tokens=2, update="merge"),
        "llama-7b": CcmSettings(),
        "llama-7b-merge": CcmSettings(update="merge"),
    },
    # The paper: 128 samples a step, AdamW 3e-4, cosine, warm-up 3 %; 2,000 steps on MetaICL, 300 on LaMP, 1,000 on
    # DailyDialog, after a LoRA with full context on the same data.
    recipes={
        "nano": _NANO,
        "nano-merge": _NANO,
        "smollm2-135m": _REAL,
        "smollm2-135m-merge": _REAL,
        "llama-7b": _TWO_STAGES,
        "llama-7b-merge": _TWO_STAGES,
    },
    growth="linear",
    trainable=True,
    cost=ccm_cost,
    checked=CcmSettings(comp_tokens=2, rank=2),
    paper="2312.03414",
    retired={"held": None, "ema": None},
)
GISTING = replace(
    CCM,
    name="gisting",
    summary="keys and values of a few COMP tokens that read everything at once",
    where="ttabench.methods.ccm.method:Gisting",
    Settings=GistingSettings,
    presets={
        "nano": GistingSettings(comp_tokens=4, rank=32, alpha=32.0),
        "smollm2-135m": GistingSettings(comp_tokens=2),
        "llama-7b": GistingSettings(),
    },
    recipes={name: CCM.recipes[name] for name in ("nano", "smollm2-135m", "llama-7b")},
    cost=gisting_cost,
    checked=GistingSettings(comp_tokens=2, rank=2),
    paper="2304.08467",
    retired={},
)
GISTING_ONLINE = replace(
    GISTING,
    name="gisting_online",
    summary="Gisting, each piece by itself",
    where="ttabench.methods.ccm.method:GistingOnline",
    trained_as="gisting",
    cost=gisting_online_cost,
)
COMPRESSIVE = replace(
    GISTING,
    name="compressive",
    summary="keys and values of each piece, pooled: Compressive Transformer",
    where="ttabench.methods.ccm.compressive:Compressive",
    Settings=CompressiveSettings,
    presets={
        "nano": CompressiveSettings(rank=32, alpha=32.0),
        **dict.fromkeys(("smollm2-135m", "llama-7b"), CompressiveSettings()),
    },
    cost=None,
    checked=CompressiveSettings(rank=2, ratio=4),
    paper="1911.05507",
    retired={"slots": None, "pool": "conv"},
)
METHODS = (CCM, GISTING, GISTING_ONLINE, COMPRESSIVE)
