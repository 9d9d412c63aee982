"""Gradient steps on what is read: one on each document, where methods differ in what its tokens weigh, or several
passes over all documents (`cpt`)."""

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
    """Settings of `uniform`, and of all that weigh tokens; the defaults are those of CaMeLS' released code."""

    normaliser: Literal["padded", "tokens"] = "padded"
    """What the weighted sum of a document's losses is divided by. padded: `pad_len` - 1, as where every text is padded
    to that length; tokens: how many tokens have a loss."""
    pad_len: int = 1024
    """Tokens that documents are thought to be padded to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, pad_len=self.pad_len)


@dataclass(frozen=True, kw_only=True)
class SalientSettings(OnlineSettings):
    """Settings of `salient_spans`."""

    spans: Literal["rule"] = "rule"
    """Runs of capitalised words (a single one that begins a sentence does not count) and years. Earlier versions had
    spaCy's entities as the default, so that ids of runs hold it."""


@dataclass(frozen=True, kw_only=True)
class CamelsSettings(OnlineSettings):
    """Settings of `camels`; the defaults are those of the released code."""

    inner_lr: float = 5e-4
    """Of the steps of gradient descent that are unrolled in training."""
    kl_weight: float = 0.1
    """Of how far the base moves on a text of no document, in training."""
    kl_tokens: int = 64
    """Tokens of those texts, which the base model itself writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, kl_tokens=self.kl_tokens)
        require_at_least(0, inner_lr=self.inner_lr, kl_weight=self.kl_weight)


@dataclass(frozen=True, kw_only=True)
class CptSettings(DescentSettings):
    """Settings of `cpt`; the defaults are those of the Generative Adapter's paper for Mistral-7B."""

    lr: float = 1e-5
    epochs: int = 8
    """Passes over all documents that are read between two questions."""
    batch: int = 16
    """Documents of one gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, epochs=self.epochs, batch=self.batch)


def cost(settings: DescentSettings, shape: Shape, work: Workload) -> Cost:
    """Online finetuning (CaMeLS, arXiv 2305.15076): a step on each document; weights and Adam's moments are kept. Or
    continual pretraining (arXiv 2411.05877): `epochs` times, `batch` documents alive in a step.

    Answers are those of a closed book under other weights. What an optimiser step itself does, and what pads documents
    to one length, is left out. Back through a linear map goes the gradient of what enters it, and of its weight: twice
    forward. So it is of the two products of attention.
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
"""Hidden numbers of the head that weighs tokens."""


def camels_cost(settings: CamelsSettings, shape: Shape, work: Workload) -> Cost:
    """CaMeLS (arXiv 2305.15076): as `cost`, and one forward of the decoder that weighs tokens for each document."""
    base, body = (
        cost(settings, shape, work),
        shape.parameters - (0 if shape.tied else shape.vocabulary * shape.hidden),
    )
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
    summary="weights finetuned on each document, every token alike",
    import_path="ttabench.methods.online.method:Uniform",
    Settings=OnlineSettings,
    presets={
        # The best of 1e-2, 3e-3, 1e-3, 3e-4 and 1e-4 by nats of the answer, validation split of streamingqa's twin.
        "nano": OnlineSettings(lr=3e-4),
        # The rate of MAC's baselines (arXiv 2403.04317, appendix), which cut documents at 512 tokens.
        "mac": OnlineSettings(lr=6.5e-6, max_tokens=512),
    },
    growth="constant",
    cost=cost,
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
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
    summary="weights finetuned on each document, tokens weighed by a small trained LM",
    import_path="ttabench.methods.online.camels:Camels",
    Settings=CamelsSettings,
    presets={
        # Steps of plain descent that are large enough to write a fact; in use the best of Adam's 3e-4, 1e-3 and 3e-3.
        "nano": CamelsSettings(normaliser="tokens", inner_lr=0.1, lr=1e-3),
        "mac": CamelsSettings(lr=2.5e-5, max_tokens=512),
    },
    recipes={
        # Validation was lowest after 80 steps; with as many more it was back where it began.
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
