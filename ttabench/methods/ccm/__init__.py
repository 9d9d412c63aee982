"""CCM: compressed context memory; a few COMP tokens read each piece, and their keys and values are what stays."""

from __future__ import annotations

from ttabench.methods.ccm.cost import cost
from ttabench.methods.ccm.settings import PRESETS, RECIPES, CcmSettings
from ttabench.methods.spec import MethodSpec

CCM = MethodSpec(
    name="ccm",
    summary="keys and values of a few COMP tokens that read each piece",
    where="ttabench.methods.ccm.method:Ccm",
    Settings=CcmSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="linear",
    trainable=True,
    cost=cost,
    checked=CcmSettings(comp_tokens=2, rank=2),
    paper="2312.03414",
)
METHODS = (CCM,)
