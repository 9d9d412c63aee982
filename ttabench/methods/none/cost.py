"""What reading nothing costs."""

from __future__ import annotations

from ttabench.cost.formula import NoSettings
from ttabench.cost.load import Cost, Workload, closed_book
from ttabench.cost.shape import Shape


def cost(_: NoSettings, shape: Shape, work: Workload) -> Cost:
    """Closed book."""
    return closed_book(shape, work)
