"""What CCM costs: each piece and its COMP tokens are read on top of the memory so far.

cost(settings, shape, work).state_floats     n slots a piece, or n in all where memories are merged
"""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.compressed import Compression, kept_slots, untouched
from ttabench.cost.load import Cost, Workload
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape
from ttabench.methods.ccm.settings import CcmSettings


def cost(settings: CcmSettings, shape: Shape, work: Workload) -> Cost:
    """CCM (arXiv 2312.03414, equations 1 to 3); merging is two operations a number and is left out."""
    maps = targeted(settings.targets, shape) if settings.targets else list(shape.attention_linears)
    factors = Factors(shape, settings.rank, maps)
    comp, added = settings.comp_tokens, factors.size + settings.comp_tokens * shape.hidden
    if not work.pieces:
        found = untouched(shape, work, added)
        return found if settings.conditional else _under_factors(found, factors, shape.starts + work.asked)
    sink = shape.starts if settings.sink else 0
    held = peak = 0
    flops = shape.forward(shape.starts) + (0 if settings.conditional else factors.forward(shape.starts))
    for number, piece in enumerate(work.pieces):
        behind = shape.starts if not number else held if settings.recursive else sink
        # what is computed for the text, too, and then left out
        adapted = comp if settings.conditional and not shape.dense else piece + comp
        flops += shape.forward(piece + comp, behind) + factors.forward(adapted)
        peak = max(peak, behind + piece + comp)
        held = comp + (held if settings.update == "concat" and number else sink)
    found = kept_slots(shape, work, Compression(flops, peak, held, comp), added)
    return found if settings.conditional else _under_factors(found, factors, work.asked)


def _under_factors(found: Cost, factors: Factors, tokens: int) -> Cost:
    """Questions and answers are read under the factors, too."""
    return replace(found, ask_flops=found.ask_flops + factors.forward(tokens))
