"""LoRA: low-rank weight deltas, trained once on a task."""

from __future__ import annotations

from ttabench.methods.lora.cost import cost
from ttabench.methods.lora.settings import PRESETS, RECIPES, LoraSettings
from ttabench.methods.spec import MethodSpec

LORA = MethodSpec(
    name="lora",
    summary="low-rank weight deltas, trained on the task",
    where="ttabench.methods.lora.method:Lora",
    Settings=LoraSettings,
    presets=PRESETS,
    recipes=RECIPES,
    trainable=True,
    cost=cost,
    checked=LoraSettings(rank=2),
    paper="2106.09685",
)
METHODS = (LORA,)
