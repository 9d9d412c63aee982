"""What methods of the papers cost that change all weights; ttabench does not run them.

    sft(settings, shape, work).added_parameters     a second set of weights

A step that trains all weights costs three forward passes (arXiv 2204.02311, appendix B: 6 N + 12 L d c a token).
Optimiser steps and norms are left out. Weights are float32. See `lowrank` for methods that write low-rank deltas of
linear maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.bounds import at_least
from ttabench.cost.formula import Formula
from ttabench.cost.load import SINGLE, Cost, Workload, closed_book
from ttabench.cost.shape import Shape


@dataclass(frozen=True, kw_only=True)
class SftSettings:
    """Settings of supervised fine-tuning."""

    document_epochs: int = 0
    """Passes over the documents before."""

    def __post_init__(self) -> None:
        at_least(0, document_epochs=self.document_epochs)


def sft(settings: SftSettings, shape: Shape, work: Workload) -> Cost:
    """Full fine-tuning on questions beforehand (arXiv 2411.05877, section 4.2), a second set of weights; with
    `document_epochs` after next-token training on the documents (its continual pretraining)."""
    bare = replace(closed_book(shape, work), added_parameters=shape.parameters)
    epochs = settings.document_epochs
    if not epochs or not work.pieces:
        return bare
    flops = sum(3 * (shape.forward(piece) + shape.head(piece)) for piece in work.pieces)
    # the context is in the weights now
    floats, longest = shape.parameters, max(work.pieces)
    return replace(
        bare,
        added_parameters=0,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=longest,
        adapt_flops=epochs * flops,
        positions=max(longest, bare.positions),
    )


FORMULAS = (Formula(name="sft", Settings=SftSettings, cost=sft, paper="2411.05877"),)
