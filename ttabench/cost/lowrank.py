"""What low-rank deltas of linear maps cost: trained beforehand (LoRA), or on the context while it is read (TempLoRA).

Letters: r rank · I/O features in and out of a linear map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttabench.core.errors import UserError
from ttabench.cost.shape import Linear, Shape


def targeted(targets: Sequence[str], shape: Shape) -> list[Linear]:
    """The linear maps of a layer that are named; all of them where none is."""
    known = sorted({linear.name for linear in shape.linears})
    missing = [target for target in targets if target not in known]
    if missing:
        raise UserError(f"The base has no linear map {missing[0]!r}.", f"It has {', '.join(known)}.")
    return [linear for linear in shape.linears if not targets or linear.name in targets]


@dataclass(frozen=True)
class Factors:
    """Low-rank factors of the same linear maps in every layer."""

    shape: Shape
    rank: int
    maps: list[Linear]

    @property
    def size(self) -> int:
        """Parameters."""
        return self.shape.layers * self.rank * sum(linear.ends for linear in self.maps)

    def forward(self, tokens: int) -> int:
        """Operations that they add to reading so many tokens."""
        return 2 * self.size * tokens

    def step(self, tokens: int, targets: int) -> int:
        """Operations of a gradient step on `tokens`, of which `targets` positions have a loss."""
        there = self.shape.forward(tokens) + self.shape.head(targets) + self.forward(tokens)
        return there + self._backward(tokens) + self.shape.head(targets)

    def _backward(self, tokens: int) -> int:
        """Gradients of all factors, and of what enters a map wherever factors stand before it."""
        shape = self.shape
        into, out = shape.attention_linears[:-1], shape.attention_linears[-1:]
        stages = (into, out, shape.feed_linears[:-1], shape.feed_linears[-1:])
        first = next(place for place, stage in enumerate(stages) if any(linear in self.maps for linear in stage))
        below = sum(linear.size for stage in stages[: first + 1] for linear in stage)
        entering = self.rank * sum(linear.inputs for linear in stages[first] if linear in self.maps)
        linears = 2 * tokens * (shape.body - below + 2 * self.size - entering)
        products = 4 * (shape.layers - 1) + (self._attention_products(into) if first == 0 else 0)
        return linears + 2 * shape.width * shape.pairs(tokens) * products

    def _attention_products(self, into: Sequence[Linear]) -> int:
        """Matrix products that go back through the first layer's attention to adapted queries, keys and values: those
        of the weights, of queries, of keys, of values."""
        adapted = [linear in self.maps for linear in into]
        queries, keys, values = adapted if len(adapted) == 3 else adapted * 3
        return (queries or keys) + queries + keys + values
