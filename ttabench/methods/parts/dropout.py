"""Dropout of what enters low-rank factors, drawn from a seed, and the same when a layer runs again.

Shape letters: T tokens · I features in · R rank; in front a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class KeptDropout:
    """The dropout of one gradient step.

    Args:
        share: of what enters a map that is zeroed, in (0, 1); the rest is scaled up.
        again: whether every map is met twice, the second time with the zeros of the first.
    """

    def __init__(self, share: float, seed: int, device: torch.device, *, again: bool) -> None:
        self._share, self._again = share, again
        self._generator = torch.Generator(device).manual_seed(seed)
        self._kept: dict[str, Tensor] = {}

    def of(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        """That of the map of this name: from x [1, T, I] and A [1, R, I] to dropout(x) A^T [1, T, R]."""
        return partial(self._product, name)

    def _product(self, name: str, x_1TI: Tensor, a_1RI: Tensor) -> Tensor:
        low_1TR: Tensor = _Product.apply(x_1TI, a_1RI, partial(self._stays, name), self._share)  # type: ignore[no-untyped-call]
        return low_1TR

    def _stays(self, name: str, x_1TI: Tensor) -> tuple[Tensor, Tensor]:
        """1 where x stays and 0 where it does not, and the same as bits."""
        if name in self._kept:
            bits = self._kept.pop(name)
            return _unpacked(bits, x_1TI), bits
        stays_1TI = torch.empty_like(x_1TI, requires_grad=False).bernoulli_(1 - self._share, generator=self._generator)
        bits = _packed(stays_1TI)
        if self._again:
            self._kept[name] = bits
        return stays_1TI, bits


class _Product(torch.autograd.Function):
    """dropout(x) A^T that keeps x, which is there anyway, and bits."""

    @staticmethod
    def forward(
        ctx: Any, x_1TI: Tensor, a_1RI: Tensor, stays: Callable[[Tensor], tuple[Tensor, Tensor]], share: float
    ) -> Tensor:
        stays_1TI, bits = stays(x_1TI)
        ctx.share = share
        ctx.save_for_backward(x_1TI, a_1RI, bits)
        return torch.mm(stays_1TI.mul_(x_1TI).div_(1 - share)[0], a_1RI[0].T)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x_1TI, a_1RI, bits = ctx.saved_tensors
        stays_1TI = _unpacked(bits, x_1TI).div_(1 - ctx.share)
        slope_x = torch.mm(slopes[0][0], a_1RI[0])[None].mul_(stays_1TI) if ctx.needs_input_grad[0] else None
        return slope_x, torch.mm(slopes[0][0].T, stays_1TI.mul_(x_1TI)[0])[None], None, None


def _packed(stays: Tensor) -> Tensor:
    """Eight in a byte on a CPU, else one."""
    return stays.bool() if stays.device.type != "cpu" else torch.from_numpy(np.packbits(stays.bool().numpy()))


def _unpacked(bits: Tensor, like: Tensor) -> Tensor:
    if bits.dtype == torch.bool:
        return bits.to(like.dtype)
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=like.numel())).view(like.shape).to(like.dtype)
