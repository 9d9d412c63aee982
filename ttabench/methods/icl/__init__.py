"""In-context learning: everything observed stands in the window, the ceiling of a comparison while it fits."""

from __future__ import annotations

from ttabench.methods.icl.cost import cost, most
from ttabench.methods.icl.settings import InContextSettings
from ttabench.methods.spec import MethodSpec

ICL = MethodSpec(
    name="icl",
    summary="full context: all keys and values, read once",
    where="ttabench.methods.icl.method:InContext",
    Settings=InContextSettings,
    growth="linear",
    cost=cost,
    most=most,
)
METHODS = (ICL,)
