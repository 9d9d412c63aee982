"""What gradient steps on documents cost.

cost(settings, shape, work).adapt_flops     forward and back through all that is trained, for each document of a pass
"""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape, shape_of
from ttabench.methods.online.settings import CamelsSettings, CptSettings, OnlineSettings
from ttabench.methods.parts.descent_settings import DescentSettings


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
