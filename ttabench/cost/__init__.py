"""What a run costs on paper: parameters, numbers and bytes kept, slots alive, operations, from published shapes alone.

    methods.registry.find("mac").cost(settings, shape_of("llama-2-7b"), work).adapt_flops

A method's own formula stands in its room; here is what they share, and the formulas of methods of the papers that
ttabench does not have. Nothing here needs a model, an implementation, or anything heavy to import.
"""

from __future__ import annotations

from ttabench.cost.formula import Formula
from ttabench.cost.load import BYTES, Cost, Workload, workload
from ttabench.cost.of_papers import ON_PAPER, break_even_tokens
from ttabench.cost.shape import Shape, shape_from, shape_of

__all__ = [
    "BYTES",
    "ON_PAPER",
    "Cost",
    "Formula",
    "Shape",
    "Workload",
    "break_even_tokens",
    "shape_from",
    "shape_of",
    "workload",
]
