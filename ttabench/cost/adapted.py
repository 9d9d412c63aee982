"""What methods of the papers cost that change all weights beforehand; ttabench does not run them.

    sft(settings, shape, work).added_parameters     a second set of weights

Weights are float32. See `lowrank` for methods that write low-rank deltas of linear maps.
"""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.formula import Formula, NoSettings
from ttabench.cost.load import Cost, Workload, closed_book
from ttabench.cost.shape import Shape


def sft(settings: NoSettings, shape: Shape, work: Workload) -> Cost:  # noqa: ARG001  # the arguments of formulas
    """Full fine-tuning on questions beforehand (arXiv 2411.05877, section 4.2), a second set of weights."""
    return replace(closed_book(shape, work), added_parameters=shape.parameters)


FORMULAS = (Formula(name="sft", cost=sft, paper="2411.05877"),)
