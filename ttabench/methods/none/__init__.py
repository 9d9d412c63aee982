"""No context: the floor of every comparison."""

from __future__ import annotations

from ttabench.methods.none.cost import cost
from ttabench.methods.spec import MethodSpec

NONE = MethodSpec(
    name="none",
    summary="closed book: the base model without context",
    where="ttabench.methods.none.method:NoContext",
    cost=cost,
)
METHODS = (NONE,)
