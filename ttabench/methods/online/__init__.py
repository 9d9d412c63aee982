"""Gradient steps on what is read: one on each document, where methods differ in what its tokens weigh, or several
passes over all documents (`cpt`)."""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape, shape_of
from ttabench.methods.online.settings import (
    CAMELS_PRESETS,
    CPT_PRESETS,
    RECIPES,
    SALIENT_PRESETS,
    UNIFORM_PRESETS,
    CamelsSettings,
    CptSettings,
    OnlineSettings,
    SalientSettings,
    UniformSettings,
)
from ttabench.methods.parts.lora_shape import DescentSettings
from ttabench.methods.spec import MethodSpec


def cost(settings: OnlineSettings, shape: Shape, work: Workload) -> Cost:
    """Online finetuning (CaMeLS, arXiv 2305.15076): a step on each document; weights and Adam's moments are kept.

    Answers are those of a closed book under other weights (or under low-rank deltas, with their products). What an
    optimiser step itself does is left out.
    """
    return _descended(settings, shape, work, passes=1, together=1)


def cpt_cost(settings: CptSettings, shape: Shape, work: Workload) -> Cost:
    """Continual pretraining (arXiv 2411.05877): as `cost`, `epochs` times, `batch` documents alive in a step; what pads
    them to one length is left out."""
    return _descended(settings, shape, work, passes=settings.epochs, together=settings.batch)


def _descended(settings: DescentSettings, shape: Shape, work: Workload, *, passes: int, together: int) -> Cost:
    bare = closed_book(shape, work)
    if not work.pieces:
        return bare
    read = [shape.starts + min(piece, settings.max_tokens) for piece in work.pieces]
    factors = Factors(shape, settings.rank, targeted(settings.targets, shape)) if settings.restrict == "lora" else None
    size = factors.size if factors else shape.parameters
    floats = (3 if settings.optimizer == "adam" else 1) * size
    step = factors.step if factors else lambda tokens, targets: whole_step(shape, tokens, targets)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=SINGLE * floats + INTEGER,
        adapt_slots=sum(tokens - 1 for tokens in sorted(read)[-together:]),
        adapt_flops=passes * sum(step(tokens - 1, tokens - 1) for tokens in read if tokens > 1),
        ask_flops=bare.ask_flops + (factors.forward(bare.positions) if factors else 0),
        positions=max(bare.positions, *read),
    )


HEAD = 128
"""Hidden numbers of the head that weighs tokens."""


def camels_cost(settings: CamelsSettings, shape: Shape, work: Workload) -> Cost | None:
    """CaMeLS (arXiv 2305.15076): as `cost`, and one forward of the decoder that weighs tokens for each document.

    Of a proxy whose sizes are not known here, None.
    """
    proxy = shape_of(settings.proxy) if settings.proxy else shape
    if proxy is None:
        return None
    head = HEAD * (proxy.hidden + 1) + HEAD + 1
    untied = 0 if proxy.tied else proxy.vocabulary * proxy.hidden
    base_cost = cost(settings, shape, work)
    read = [shape.starts + min(piece, settings.max_tokens) for piece in work.pieces]
    weighing = sum(proxy.forward(tokens) + 2 * tokens * HEAD * (proxy.hidden + 1) for tokens in read)
    return replace(
        base_cost,
        added_parameters=proxy.parameters - untied + head,
        adapt_flops=base_cost.adapt_flops + weighing,
    )


def whole_step(shape: Shape, tokens: int, targets: int) -> int:
    """Operations of a gradient step of all weights on `tokens`, of which `targets` positions have a loss.

    Back through a linear map goes the gradient of what enters it, and of its weight: twice forward. So it is of the two
    products of attention.
    """
    return 3 * (shape.forward(tokens) + shape.head(targets))


UNIFORM = MethodSpec(
    name="uniform",
    summary="weights finetuned on each document, every token alike",
    where="ttabench.methods.online.method:Uniform",
    Settings=UniformSettings,
    presets=UNIFORM_PRESETS,
    growth="constant",
    cost=cost,
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
    checked=UniformSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32),
    paper="2305.15076",
)
SALIENT_SPANS = MethodSpec(
    name="salient_spans",
    summary="weights finetuned on the named entities of each document",
    where="ttabench.methods.online.salient:SalientSpans",
    Settings=SalientSettings,
    presets=SALIENT_PRESETS,
    growth="constant",
    cost=cost,
    checked=SalientSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32, spans="rule"),
    paper="2305.15076",
)
CAMELS = MethodSpec(
    name="camels",
    summary="weights finetuned on each document, tokens weighed by a small trained LM",
    where="ttabench.methods.online.camels:Camels",
    Settings=CamelsSettings,
    presets=CAMELS_PRESETS,
    recipes=RECIPES,
    growth="constant",
    trainable=True,
    cost=camels_cost,
    checked=CamelsSettings(rank=2, lr=1e-2, eps=1e-3, pad_len=32, kl_tokens=8),
    paper="2305.15076",
)
CPT = MethodSpec(
    name="cpt",
    summary="weights finetuned in several passes over all documents",
    where="ttabench.methods.online.method:Cpt",
    Settings=CptSettings,
    presets=CPT_PRESETS,
    growth="constant",
    cost=cpt_cost,
    checked=CptSettings(rank=2, lr=1e-2, eps=1e-3, epochs=2, batch=2),
    paper="2411.05877",
)
METHODS = (UNIFORM, SALIENT_SPANS, CAMELS, CPT)
