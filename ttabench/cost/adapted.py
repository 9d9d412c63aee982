"""What methods of the papers cost that change all weights, or write one map of every layer; ttabench does not run them.

    generative_adapter(settings, shape, work).ask_flops     a closed book's: the delta is merged into the weights

A step that trains all weights costs three forward passes (arXiv 2204.02311, appendix B: 6 N + 12 L d c a token).
Optimiser steps and norms are left out. Deltas, moments and states are float32. See `lowrank` and `streamed` for those
that write low-rank deltas of linear maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.bounds import at_least
from ttabench.cost.formula import Formula
from ttabench.cost.load import SINGLE, Cost, Workload, closed_book
from ttabench.cost.shape import Shape

SVD = 21
"""Operations of a full singular value decomposition of an n x n matrix, in n^3 (Golub and Van Loan, Matrix
Computations, 4th edition, section 8.6: 4 m^2 n + 8 m n^2 + 9 n^3)."""


@dataclass(frozen=True, kw_only=True)
class SftSettings:
    """Settings of supervised fine-tuning."""

    document_epochs: int = 0
    """Passes over the documents before."""

    def __post_init__(self) -> None:
        at_least(0, document_epochs=self.document_epochs)


@dataclass(frozen=True, kw_only=True)
class GenerativeAdapterSettings:
    """Settings of Generative Adapter."""

    inner: int = 1024
    """Width of the outer products."""
    rank: int = 128
    """Rank of each delta."""
    chunk: int = 1024
    """Tokens that are read together."""
    finalize: bool = False
    """Keep the deltas alone, after which nothing more is read."""

    def __post_init__(self) -> None:
        at_least(1, inner=self.inner, rank=self.rank, chunk=self.chunk)


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


def generative_adapter(settings: GenerativeAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """Generative Adapter (arXiv 2411.05877, equations 3 and 6-9): outer products of hidden states, summed, normalised
    by a singular value decomposition, and written into the output projection of every layer's attention."""
    inner, rank, target = settings.inner, settings.rank, shape.attention_linears[-1]
    generator = inner * (target.ends + 2 * shape.hidden) + shape.hidden
    factors, summed = rank * target.ends, inner**2
    written = SVD * inner**3 + 2 * inner * factors
    chunks = [size for piece in work.pieces for size in _cut(piece, settings.chunk)]
    chunks[:1] = [shape.starts + size for size in chunks[:1]]
    flops = sum(shape.forward(size) + shape.layers * size * (4 * shape.hidden * inner + 2 * summed) for size in chunks)
    flops += shape.layers * written * len(chunks)
    flops += 2 * shape.layers * factors * sum(chunks[1:])  # later chunks are read by the weights adapted so far
    floats = shape.layers * (factors + (0 if settings.finalize else summed)) if chunks else 0
    bare, longest = closed_book(shape, work), max(chunks, default=0)
    return replace(
        bare,
        added_parameters=shape.layers * generator,
        state_floats=floats,
        state_bytes=floats * SINGLE,
        adapt_slots=longest,
        adapt_flops=flops + (2 * shape.layers * rank * target.size if chunks else 0),  # merged once
        positions=max(longest, bare.positions),
    )


def _cut(piece: int, size: int) -> list[int]:
    """Parts of like length, of at most `size`."""
    count = -(-piece // size)
    return [piece * (number + 1) // count - piece * number // count for number in range(count)]


FORMULAS = (
    Formula(
        name="generative_adapter",
        Settings=GenerativeAdapterSettings,
        cost=generative_adapter,
        presets={"nano": GenerativeAdapterSettings(inner=64, rank=8)},
        paper="2411.05877",
    ),
    Formula(name="sft", Settings=SftSettings, cost=sft, paper="2411.05877"),
)
