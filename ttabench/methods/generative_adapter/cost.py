"""What Generative Adapter costs: chunks read once, outer products summed, a decomposition, and low-rank deltas of it.

    cost(settings, shape, work).state_floats     the sum d_r x d_r of every map and its deltas, whatever the length

Chen et al., arXiv 2411.05877, equations 3 and 6 to 9. Operations of a decomposition are those of Golub and Van Loan,
Matrix Computations, 4th edition, section 8.6 (R-SVD); of its orthogonalisations, as of all norms, nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ttabench.cost.load import SINGLE, Cost, Workload, closed_book
from ttabench.cost.lowrank import Factors, targeted
from ttabench.cost.shape import Linear, Shape
from ttabench.methods.generative_adapter.settings import GenerativeAdapterSettings


def svd_flops(rows: int, columns: int) -> int:
    """Operations of all singular values and vectors of a matrix: 21 n^3 of a square one."""
    long, short = max(rows, columns), min(rows, columns)
    return 4 * long**2 * short + 8 * long * short**2 + 9 * short**3


def singular_values_flops(rows: int, columns: int) -> int:
    """Operations of its singular values alone."""
    long, short = max(rows, columns), min(rows, columns)
    return 4 * long * short**2 - 4 * short**3 // 3


@dataclass(frozen=True)
class _Generators:
    """The networks that make deltas of hidden states, in all layers."""

    shape: Shape
    settings: GenerativeAdapterSettings
    maps: list[Linear]

    @property
    def deltas(self) -> Factors:
        """The deltas that are made."""
        return Factors(self.shape, self.settings.delta_rank, self.maps)

    @property
    def count(self) -> int:
        """Adapted linear maps."""
        return self.shape.layers * len(self.maps)

    @property
    def summed(self) -> int:
        """Numbers of all sums of outer products."""
        return self.count * self.settings.inner * self.settings.keys

    @property
    def parameters(self) -> int:
        """A1, A2, B1, B2 and a norm of every map."""
        inner, keys, hidden = self.settings.inner, self.settings.keys, self.shape.hidden
        ends = sum(inner * linear_map.outputs + keys * linear_map.inputs for linear_map in self.maps)
        return self.shape.layers * ends + self.count * ((inner + keys) * hidden + hidden)

    def read(self, tokens: int) -> int:
        """Operations of adding the outer products of so many hidden states."""
        settings = self.settings
        projected = self.count * (settings.inner + settings.keys) * self.shape.hidden
        return 2 * tokens * (projected + self.summed)

    @property
    def made(self) -> int:
        """Operations of making the deltas of the sums."""
        inner, keys, rank = self.settings.inner, self.settings.keys, self.settings.rank
        inputs, outputs = (
            self.shape.layers * sum(getattr(linear_map, end) for linear_map in self.maps)
            for end in ("inputs", "outputs")
        )
        if self.settings.norm == "svd":
            return int(self.count * self._decomposed() + 2 * rank * (keys * inputs + inner * outputs))
        values = singular_values_flops(inner, keys) if self.settings.norm == "spectral" else 0
        return int(self.count * values + 2 * inner * keys * inputs)

    def _decomposed(self) -> int:
        """Operations of the first singular vectors of one sum."""
        inner, keys, rank = self.settings.inner, self.settings.keys, self.settings.rank
        if self.settings.svd == "exact":
            return svd_flops(inner, keys)
        small = min(inner, keys)  # the longer side is the one that is sampled
        products = 2 * inner * keys * rank * (2 + 2 * self.settings.niter)
        return products + svd_flops(rank, small) + 2 * max(inner, keys) * rank * rank

    @property
    def merged(self) -> int:
        """Operations of adding the deltas to the weights."""
        return 2 * self.shape.layers * self.settings.delta_rank * sum(linear_map.size for linear_map in self.maps)


def cost(settings: GenerativeAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """Generative Adapter (arXiv 2411.05877): later chunks are read by the weights adapted so far."""
    maps = targeted(settings.targets, shape) if settings.targets else [shape.attention_linears[-1]]
    made, bare = _Generators(shape, settings, maps), closed_book(shape, work)
    chunks = list(_chunks(settings, shape, work))
    if not chunks:
        return replace(bare, added_parameters=made.parameters)
    adapted = settings.strategy == "sequential"
    flops = sum(shape.forward(size) + made.read(size) for size in chunks)
    flops += made.deltas.forward(sum(chunks[1:])) if adapted else 0
    flops += made.made * (len(chunks) if adapted else 1) + (made.merged if settings.merge else 0)
    floats = 0 if settings.finalize else made.summed
    floats += made.deltas.size if settings.norm == "svd" else 0
    asked = 0 if settings.merge else made.deltas.forward(shape.starts + work.asked)
    return replace(
        bare,
        added_parameters=made.parameters,
        state_floats=floats,
        state_bytes=SINGLE * floats,
        adapt_slots=max(chunks),
        adapt_flops=flops,
        ask_flops=bare.ask_flops + asked,
        positions=max(*chunks, bare.positions),
    )


def _chunks(settings: GenerativeAdapterSettings, shape: Shape, work: Workload) -> Iterator[int]:
    """Tokens of every chunk; what begins a text stands in the first."""
    texts = work.runs if settings.buffer else work.pieces
    for number, tokens in enumerate(texts):
        yield from settings.cut(tokens + (0 if number else shape.starts))
