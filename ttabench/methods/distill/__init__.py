"""Context distillation: a student without the context learns what the base says with it."""

from __future__ import annotations

from ttabench.methods.distill.cost import cost
from ttabench.methods.distill.settings import PRESETS, DistillSettings
from ttabench.methods.spec import MethodSpec

DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA or prefix trained to answer as the base does with the context",
    where="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets=PRESETS,
    growth="constant",
    cost=cost,
    checked=DistillSettings(rank=2, slots=8, ask="text", length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
)
METHODS = (DISTILL,)
