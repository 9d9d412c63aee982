"""MAC, Memory of Amortized Contexts."""

from __future__ import annotations

from ttabench.methods.mac.cost import cost
from ttabench.methods.mac.settings import PRESETS, RECIPES, TINY, MacSettings
from ttabench.methods.spec import MethodSpec

MAC = MethodSpec(
    name="mac",
    summary="latents of documents, a prefix a question",
    where="ttabench.methods.mac.method:Mac",
    Settings=MacSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="linear",
    trainable=True,
    looks_at_question=True,
    piece_shares=lambda settings: settings.hierarchy is None,
    cost=cost,
    checked=TINY,
    paper="2403.04317",
)
METHODS = (MAC,)
