"""What LoRA costs."""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.load import Cost, Workload, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Shape
from ttabench.methods.lora.settings import LoraSettings


def cost(settings: LoraSettings, shape: Shape, work: Workload) -> Cost:
    """LoRA (arXiv 2106.09685), trained beforehand: the context is not read."""
    factors = Factors(shape, settings.rank, targeted(settings.targets, shape))
    bare = closed_book(shape, work)
    asked = bare.ask_flops + factors.forward(shape.starts + work.asked)
    return replace(bare, added_parameters=factors.size, ask_flops=asked)
