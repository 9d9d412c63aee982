"""Online finetuning: one step per document, or several passes over all (`cpt`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json
from ttabench.cost import FLOAT32_BYTES, INT64_BYTES, Cost, Shape, Workload, closed_book_cost
from ttabench.methods.parts.settings import DescentSettings
from ttabench.methods.spec import MethodSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class OnlineSettings(DescentSettings):
    """Settings of online finetuning; the defaults are those of CaMeLS' released code."""

    normaliser: Literal["padded", "tokens"] = "padded"
    """Divisor of the weighted sum of a document's losses. padded: `pad_len` - 1, as if every text
    were padded to that length. tokens: the number of tokens with a loss."""
    pad_len: int = 1024
    """Assumed padded length of documents, in tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, pad_len=self.pad_len)


@dataclass(frozen=True, kw_only=True)
class SalientSettings(OnlineSettings):
    """Settings of `salient_spans`."""

    spans: Literal["rule"] = "rule"
    """rule: runs of capitalised words (except a single word that begins a sentence) and years.
    Earlier versions used spaCy's entities by default, so run ids contain this setting."""


@dataclass(frozen=True, kw_only=True)
class CamelsSettings(OnlineSettings):
    """Settings of `camels`; the defaults are those of the released code."""

    inner_lr: float = 5e-4
    """Learning rate of the unrolled gradient steps in training."""
    kl_weight: float = 0.1
    """Weight of the KL divergence from the base model on unrelated texts, in training."""
    kl_tokens: int = 64
    """Tokens of those texts, which the base model writes itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, kl_tokens=self.kl_tokens)
        require_at_least(0, inner_lr=self.inner_lr, kl_weight=self.kl_weight)


@dataclass(frozen=True, kw_only=True)
class CptSettings(DescentSettings):
    """Settings of `cpt`; the defaults are the Generative Adapter paper's for Mistral-7B."""

    lr: float = 1e-5
    epochs: int = 8
    """Passes over all documents that are read between two queries."""
    batch: int = 16
    """Documents of one gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, epochs=self.epochs, batch=self.batch)


def cost(settings: DescentSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of online finetuning (CaMeLS, arXiv 2305.15076) with weights and Adam moments kept.

    Online finetuning takes one step per document. Continual pretraining (arXiv 2411.05877) makes
    `epochs` passes, with `batch` documents in a step. Queries are answered closed book. Optimiser
    updates and padding are not counted. A backward pass costs twice a forward pass: gradients of
    inputs and of weights, or of both factors of attention products.
    """
    base, passes, batch_size = closed_book_cost(shape, work), 1, 1
    if isinstance(settings, CptSettings):
        passes, batch_size = settings.epochs, settings.batch
    if not work.chunk_tokens:
        return base
    read_tokens = [
        shape.bos_tokens + min(document, settings.max_tokens) for document in work.chunk_tokens
    ]
    trained_tokens = [tokens - 1 for tokens in read_tokens]  # the last one predicts nothing
    return replace(
        base,
        state_floats=3 * shape.parameters,
        state_bytes=FLOAT32_BYTES * 3 * shape.parameters + INT64_BYTES,
        adapt_slots=sum(sorted(trained_tokens)[-batch_size:]),
        adapt_flops=3
        * passes
        * sum(shape.forward_flops(tokens) + shape.head_flops(tokens) for tokens in trained_tokens),
        positions=max(base.positions, *read_tokens),
    )


HEAD_HIDDEN_SIZE = 128
"""Hidden width of the head that weights tokens."""


def camels_cost(settings: CamelsSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of CaMeLS: as `cost`, plus a forward pass of the weighting decoder per document."""
    base = cost(settings, shape, work)
    body = shape.parameters - (0 if shape.tied else shape.vocabulary * shape.hidden)
    read_tokens = [
        shape.bos_tokens + min(document, settings.max_tokens) for document in work.chunk_tokens
    ]
    weighing = sum(
        shape.forward_flops(tokens) + 2 * tokens * HEAD_HIDDEN_SIZE * (shape.hidden + 1)
        for tokens in read_tokens
    )
    added = body + HEAD_HIDDEN_SIZE * (shape.hidden + 1) + HEAD_HIDDEN_SIZE + 1
    return replace(base, added_parameters=added, adapt_flops=base.adapt_flops + weighing)


RETIRED: Mapping[str, Json] = {
    "rank": 64,
    "alpha": 64.0,
    "targets": [],
    "restrict": "none",
    "optimizer": "adam",
}
UNIFORM = MethodSpec(
    name="uniform",
    summary="weights finetuned on each document, with equal token weights",
    import_path="ttabench.methods.online.method:Uniform",
    Settings=OnlineSettings,
    presets={
        # Best answer NLL of 1e-2, 3e-3, 1e-3, 3e-4 and 1e-4 on the validation split of synthetic
        # streamingqa.
        "nano": OnlineSettings(lr=3e-4),
        # Learning rate of MAC's baselines (arXiv 2403.04317, appendix), which truncate documents at
        # 512 tokens.
        "mac": OnlineSettings(lr=6.5e-6, max_tokens=512),
    },
    growth="constant",
    cost=cost,
    # a larger eps: with a small one, Adam amplifies float noise in gradients near zero
    test_settings=OnlineSettings(lr=1e-2, eps=1e-3, pad_len=32),
    paper="2305.15076",
    deprecated_settings=RETIRED,
)
SALIENT_SPANS = replace(
    UNIFORM,
    name="salient_spans",
    summary="weights finetuned on the named entities of each document",
    import_path="ttabench.methods.online.method:SalientSpans",
    Settings=SalientSettings,
    presets={"nano": SalientSettings(), "mac": SalientSettings(lr=6.5e-6, max_tokens=512)},
    test_settings=SalientSettings(lr=1e-2, eps=1e-3, pad_len=32),
    deprecated_settings={**RETIRED, "spacy_model": "en_core_web_sm", "spans": "spacy"},
)
CAMELS = replace(
    UNIFORM,
    name="camels",
    summary="weights finetuned on each document, with token weights from a small trained LM",
    import_path="ttabench.methods.online.camels:Camels",
    Settings=CamelsSettings,
    presets={
        # Plain gradient steps large enough to store a fact; lr is the best of 3e-4, 1e-3 and 3e-3
        # for Adam.
        "nano": CamelsSettings(normaliser="tokens", inner_lr=0.1, lr=1e-3),
        "mac": CamelsSettings(lr=2.5e-5, max_tokens=512),
    },
    recipes={
        # Validation loss was lowest after 80 steps, and back at its initial value after 160.
        "nano": Recipe(documents=(6,), batch_documents=24, steps=80, lr=1e-3),
        "mac": Recipe(documents=(6,), batch_documents=24, steps=1000, lr=1e-5),
    },
    trainable=True,
    cost=camels_cost,
    test_settings=CamelsSettings(lr=1e-2, eps=1e-3, pad_len=32, kl_tokens=8),
    deprecated_settings={**RETIRED, "proxy": "", "first_order": False, "reset_every": 24},
)
CPT = replace(
    UNIFORM,
    name="cpt",
    summary="weights finetuned in several passes over all documents",
    import_path="ttabench.methods.online.method:Cpt",
    Settings=CptSettings,
    presets={
        "nano": CptSettings(lr=1e-3),
        "mistral-7b-instruct": CptSettings(),
        "llama-2-7b-chat": CptSettings(lr=3e-5),
    },
    test_settings=CptSettings(lr=1e-2, eps=1e-3, epochs=2, batch=2),
    paper="2411.05877",
)
METHODS = (UNIFORM, SALIENT_SPANS, CAMELS, CPT)
