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


def break_even_tokens(shape: Shape, comp_tokens: int, piece_tokens: int) -> float:
    """Tokens of prompts and answers from which on compressing a piece saves operations (arXiv 2312.03414, table 12).

    A COMP token costs 2 operations a parameter of the layers; a slot less saves attention to every later token. This
    is the paper's own rule, by which its table can be computed again; `table.break_even` compares whole costs instead.
    """
    saved = shape.attention(piece_tokens - comp_tokens)
    return comp_tokens * 2 * shape.body / saved


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
