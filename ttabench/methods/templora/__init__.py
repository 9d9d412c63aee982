"""TempLoRA: a LoRA trained while the context is read."""

from __future__ import annotations

from ttabench.methods.spec import MethodSpec
from ttabench.methods.templora.cost import cost
from ttabench.methods.templora.settings import PRESETS, TempLoraSettings

TEMPLORA = MethodSpec(
    name="templora",
    summary="a LoRA trained while the context is read",
    where="ttabench.methods.templora.method:TempLora",
    Settings=TempLoraSettings,
    presets=PRESETS,
    growth="constant",
    cost=cost,
    # a larger eps: Adam would blow float noise in gradients near zero up to the rate
    checked=TempLoraSettings(rank=2, prefix=8, lr=1e-2, schedule="constant", eps=1e-3),
    paper="2401.11504",
)
METHODS = (TEMPLORA,)
