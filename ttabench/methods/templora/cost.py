"""What TempLoRA costs.

cost(settings, shape, work).adapt_flops     `epochs` steps on every piece, then the prefix, read once more
"""

from __future__ import annotations

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape
from ttabench.methods.templora.settings import TempLoraSettings


def cost(settings: TempLoraSettings, shape: Shape, work: Workload) -> Cost:
    """Temp-LoRA (arXiv 2401.11504, section 3): gradient steps of a LoRA on every piece, behind `prefix` tokens. The
    state holds factors, two moments of Adam, the prefix, and three counts. Steps are counted as those that keep what
    they compute: `recompute` adds a forward to each, about a fourth."""
    factors = Factors(shape, settings.rank, targeted(settings.targets, shape))
    bare = closed_book(shape, work)
    if not work.pieces:
        return bare
    before = flops = peak = 0
    for piece in work.pieces:
        text = shape.starts + min(settings.prefix, before)
        tokens = text + piece - 1  # the last one predicts nothing
        flops += settings.epochs * factors.step(tokens, piece if text else piece - 1)
        peak, before = max(peak, tokens if settings.epochs else 0), before + piece
    kept = min(max(0, settings.prefix - 1), before)  # the query brings one
    slots = shape.starts + kept if kept else 0
    floats, asked = 3 * factors.size, work.asked + (0 if kept else shape.starts)
    return Cost(
        parameters=shape.parameters,
        state_floats=floats,
        state_bytes=SINGLE * floats + INTEGER * (settings.prefix + 3),
        adapt_slots=max(peak, slots),
        ask_slots=slots + asked,
        adapt_flops=flops + shape.forward(slots) + factors.forward(slots),
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + factors.forward(asked),
        positions=max(peak, slots + asked),
    )
