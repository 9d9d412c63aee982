"""No context: the floor of every comparison."""

from __future__ import annotations

from ttabench.cost import Cost, NoSettings, Shape, Workload, closed_book
from ttabench.methods.spec import MethodSpec


def cost(_: NoSettings, shape: Shape, work: Workload) -> Cost:
    """Closed book."""
    return closed_book(shape, work)


NONE = MethodSpec(
    name="none",
    summary="closed book: the base model without context",
    where="ttabench.methods.none.method:NoContext",
    cost=cost,
)

METHODS = (NONE,)
