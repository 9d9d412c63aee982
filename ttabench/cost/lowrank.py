"""What low-rank deltas of linear maps cost: trained beforehand (LoRA), or on the context while it is read (TempLoRA).

    templora(settings, shape, work).adapt_flops     `epochs` steps on every piece, then the prefix, read once more

Deltas are not merged: what is read under them costs 2 r (I + O) more a token and map. A gradient step goes forward,
then back: through a frozen map goes the gradient of what enters it alone, as many operations as forward; through
attention twice as many; below the first adapted map nothing. Left out are optimiser steps, norms, and the further
forward of a step that computes its layers again to hold less, as on large bases (`ttabench.lm.recompute`).

Letters: r rank · I/O features in and out of a linear map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttabench.core.errors import UserError
from ttabench.cost.load import INTEGER, SINGLE, Cost, Settings, Workload, answer, closed_book
from ttabench.cost.shape import Linear, Shape


def targeted(targets: Sequence[str], shape: Shape) -> list[Linear]:
    """The linear maps of a layer that are named; all of them where none is.

    Raises:
        UserError: the base has no such linear map.
    """
    known = sorted({linear.name for linear in shape.linears})
    missing = [target for target in targets if target not in known]
    if missing:
        raise UserError(f"The base has no linear map {missing[0]!r}.", f"It has {', '.join(known)}.")
    return [linear for linear in shape.linears if not targets or linear.name in targets]


@dataclass(frozen=True)
class _Factors:
    """Low-rank factors of the same linear maps in every layer."""

    shape: Shape
    rank: int
    maps: list[Linear]

    @staticmethod
    def of(settings: Settings, shape: Shape) -> _Factors:
        return _Factors(shape, settings["rank"], targeted(settings["targets"], shape))

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


def lora(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """LoRA (arXiv 2106.09685), trained beforehand: the context is not read."""
    factors, bare = _Factors.of(settings, shape), closed_book(shape, work)
    asked = bare.ask_flops + factors.forward(shape.starts + work.asked)
    return replace(bare, added_parameters=factors.size, ask_flops=asked)


def templora(settings: Settings, shape: Shape, work: Workload) -> Cost:
    """Temp-LoRA (arXiv 2401.11504, section 3): gradient steps of a LoRA on every piece, behind `prefix` tokens. The
    state holds factors, two moments of Adam, the prefix, and three counts. Steps are counted as those that keep what
    they compute: `recompute` adds a forward to each, about a fourth."""
    factors, bare = _Factors.of(settings, shape), closed_book(shape, work)
    if not work.pieces:
        return bare
    before = flops = peak = 0
    for piece in work.pieces:
        text = shape.starts + min(settings["prefix"], before)
        tokens = text + piece - 1  # the last one predicts nothing
        flops += settings["epochs"] * factors.step(tokens, piece if text else piece - 1)
        peak, before = max(peak, tokens if settings["epochs"] else 0), before + piece
    kept = min(max(0, settings["prefix"] - 1), before)  # the query brings one
    slots = shape.starts + kept if kept else 0
    floats, asked = 3 * factors.size, work.asked + (0 if kept else shape.starts)
    return Cost(
        parameters=shape.parameters,
        state_floats=floats,
        state_bytes=SINGLE * floats + INTEGER * (settings["prefix"] + 3),
        adapt_slots=max(peak, slots),
        ask_slots=slots + asked,
        adapt_flops=flops + shape.forward(slots) + factors.forward(slots),
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + factors.forward(asked),
        positions=max(peak, slots + asked),
    )
