"""Gradient steps that hold little: what enters each decoder layer is kept, the rest is computed again on the way back.

    with deltas_applied(lm, deltas, rows=1), layers_recomputed(lm):
        (summed / count).backward()          the way back runs inside, under the same deltas

One more forward buys memory that hardly grows with the number of layers (Chen et al., arXiv 1604.06174). Unlike
`torch.utils.checkpoint`, all that is kept lies in one block of memory: kept tensors between those that come and go
leave a CPU's allocator with holes that nothing fits into, as much again as the step itself needs. What is free already
goes back to the system before each way. What is random in a layer must draw the same again by itself
(`layers.row_dropout`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ttabench.lm.model import LM


@contextmanager
def layers_recomputed(lm: LM) -> Iterator[None]:
    """Inside, one gradient step computes every decoder layer again on the way back; undone when the block ends."""
    blocks, kept = list(lm.blocks()), _Kept(lm.layers)
    _give_back()
    try:
        for number, block in enumerate(blocks):
            block.forward = partial(_run, block.forward, kept, number)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def step_bytes(lm: LM, tokens: int) -> int:
    """About how much a gradient step through all adapted maps holds between its two ways, if all is kept.

    Twice what enters and leaves the linear maps: norms, rotations, gates and dropout's zeros come on top of these.
    """
    ends = sum(sum(lm.linear_shape(name)) for name in lm.linear_names())
    return 2 * ends * tokens * lm.dtype.itemsize


def _give_back() -> None:
    """Hand free memory to the system, where the C library can (glibc): what lies between used blocks, too."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class _Kept:
    """The inputs of all layers, in one tensor [L, B, T, D]."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._held: Tensor | None = None
        self._back = False

    def put(self, number: int, hidden_BTD: Tensor) -> Tensor:
        """A copy of it."""
        if self._held is None:
            self._held = hidden_BTD.new_empty(self._layers, *hidden_BTD.shape, requires_grad=False)
        return self._held[number].copy_(hidden_BTD.detach())

    def turned(self) -> None:
        """The way back has begun, or goes on."""
        if not self._back and self._held is not None and self._held.device.type == "cpu":
            _give_back()
        self._back = True


def _run(inner: Callable[..., Any], kept: _Kept, number: int, hidden_BTD: Tensor, *args: Any, **options: Any) -> Any:
    """A decoder layer that forgets what it computed; further outputs of it are handed on without gradients."""
    if not torch.is_grad_enabled():
        return inner(hidden_BTD, *args, **options)
    more: list[Any] = []

    def layer(hidden: Tensor) -> Tensor:
        out = inner(hidden, *args, **options)
        if isinstance(out, Tensor):
            return out
        more[:] = out[1:]
        first: Tensor = out[0]
        return first

    asking = torch.empty(0, requires_grad=True)  # what enters the first layer needs no gradient, its deltas do
    out_BTD = _Again.apply(layer, kept, number, hidden_BTD, asking)  # type: ignore[no-untyped-call]
    return (out_BTD, *more) if more else out_BTD


class _Again(torch.autograd.Function):
    """A layer whose gradients come from running it a second time; those of its deltas go to the leaves at once."""

    @staticmethod
    def forward(
        ctx: Any, layer: Callable[[Tensor], Tensor], kept: _Kept, number: int, hidden: Tensor, _asking: Tensor
    ) -> Tensor:
        ctx.layer, ctx.kept, ctx.entered = layer, kept, kept.put(number, hidden)
        return layer(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, Tensor | None, None]:
        ctx.kept.turned()
        entered = ctx.entered.requires_grad_(ctx.needs_input_grad[3])
        with torch.enable_grad():
            out = ctx.layer(entered)
        torch.autograd.backward(out, gradients)
        return None, None, None, entered.grad, None
