"""No-context baseline."""

from __future__ import annotations

from ttabench.cost import closed_book_cost
from ttabench.methods.spec import MethodSpec

NONE = MethodSpec(
    name="none",
    summary="closed book: the base model without context",
    import_path="ttabench.methods.none.method:NoContext",
    cost=lambda _, shape, work: closed_book_cost(shape, work),
)
METHODS = (NONE,)
