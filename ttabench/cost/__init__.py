"""What a run costs on paper, from published shapes alone: parameters, bytes kept, slots alive, operations."""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.formula import Formula, NoSettings
from ttabench.cost.load import BYTES, Cost, Workload, closed_book, workload
from ttabench.cost.shape import Shape, shape_from, shape_of


def sft(settings: NoSettings, shape: Shape, work: Workload) -> Cost:  # noqa: ARG001  # the arguments of formulas
    """Full fine-tuning on questions beforehand (arXiv 2411.05877, section 4.2), a second set of weights."""
    return replace(closed_book(shape, work), added_parameters=shape.parameters)


ON_PAPER = {"sft": Formula(name="sft", cost=sft, paper="2411.05877")}
"""Methods of the papers that ttabench does not run."""


__all__ = [
    "BYTES",
    "ON_PAPER",
    "Cost",
    "Formula",
    "Shape",
    "Workload",
    "shape_from",
    "shape_of",
    "workload",
]
