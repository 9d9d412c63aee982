"""Dropout whose zeros belong to a row: the same whether the row is alone or in a batch, and when a layer runs again.

    zeros = RowDropout(0.05, seeds=[3, 4], lengths=[500, 320], device, again=True)
    zeros.of("model.layers.0.mlp.up_proj")(x_BTI, a_BRI)          dropout(x) A^T

Every row draws from a generator of its own, for its own tokens, in the order that the maps are met; padding draws
nothing. What was drawn is kept as bits for the way back, where x is multiplied by it once more.

Shape letters: B rows · T tokens · I features in · R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 2**22
"""Bytes of kept bits that are asked for at once: few large blocks leave no holes in memory, see `recompute`."""


class RowDropout:
    """The dropout of one gradient step.

    Args:
        share: of what enters a map that is zeroed, in (0, 1); the rest is scaled up.
        seeds: one a row.
        lengths: tokens of each row, padding behind them.
        device: where the numbers are drawn.
        again: whether every map is met twice, the second time with the zeros of the first.
    """

    def __init__(
        self, share: float, seeds: Sequence[int], lengths: Sequence[int], device: torch.device, *, again: bool
    ) -> None:
        self._share, self._lengths, self._again = share, lengths, again
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._kept: dict[str, Tensor] = {}
        self._block, self._used = torch.empty(0, dtype=torch.uint8), 0

    def of(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        """That of the map of this name: from x [B, T, I] and A [B, R, I] to dropout(x) A^T [B, T, R]."""
        return partial(self._product, name)

    def _product(self, name: str, x_BTI: Tensor, a_BRI: Tensor) -> Tensor:
        low_BTR: Tensor = _Product.apply(x_BTI, a_BRI, partial(self._stays, name), self._share)  # type: ignore[no-untyped-call]
        return low_BTR

    def _stays(self, name: str, x_BTI: Tensor) -> tuple[Tensor, Tensor]:
        """1 where x stays and 0 where it does not, and the same as bits."""
        if name in self._kept:
            bits = self._kept.pop(name)
            return unpacked(bits, x_BTI), bits
        stays_BTI = self._drawn(x_BTI)
        bits = _packed(stays_BTI)
        if self._again:
            bits = self._kept[name] = self._placed(bits)
        return stays_BTI, bits

    def _drawn(self, x_BTI: Tensor) -> Tensor:
        stays_BTI = torch.empty_like(x_BTI, requires_grad=False)
        for stays_TI, length, generator in zip(stays_BTI, self._lengths, self._generators, strict=True):
            stays_TI[:length].bernoulli_(1 - self._share, generator=generator)
            stays_TI[length:] = 1.0
        return stays_BTI

    def _placed(self, bits: Tensor) -> Tensor:
        if bits.dtype != torch.uint8:
            return bits
        if self._used + len(bits) > len(self._block):
            self._block, self._used = torch.empty(max(BLOCK, len(bits)), dtype=torch.uint8), 0
        place = self._block[self._used : self._used + len(bits)]
        self._used += len(bits)
        return place.copy_(bits)


class _Product(torch.autograd.Function):
    """dropout(x) A^T that keeps x, which is there anyway, and bits."""

    @staticmethod
    def forward(
        ctx: Any, x_BTI: Tensor, a_BRI: Tensor, stays: Callable[[Tensor], tuple[Tensor, Tensor]], share: float
    ) -> Tensor:
        stays_BTI, bits = stays(x_BTI)
        ctx.share = share
        ctx.save_for_backward(x_BTI, a_BRI, bits)
        return _times(stays_BTI.mul_(x_BTI).div_(1 - share), a_BRI.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x_BTI, a_BRI, bits = ctx.saved_tensors
        stays_BTI = unpacked(bits, x_BTI).div_(1 - ctx.share)
        slope_x = _times(slopes[0], a_BRI).mul_(stays_BTI) if ctx.needs_input_grad[0] else None
        return slope_x, _times(slopes[0].transpose(1, 2), stays_BTI.mul_(x_BTI)), None, None


def _times(left_BXY: Tensor, right_BYZ: Tensor) -> Tensor:
    """Matrix products, row by row; of one row as one product, which is faster than a batch of one."""
    if len(left_BXY) == 1:
        return torch.mm(left_BXY[0], right_BYZ[0])[None]
    return torch.bmm(left_BXY, right_BYZ)


def _packed(stays: Tensor) -> Tensor:
    """Eight in a byte on a CPU, else one."""
    if stays.device.type != "cpu":
        return stays.bool()
    return torch.from_numpy(np.packbits(stays.bool().numpy()))


def unpacked(bits: Tensor, like: Tensor) -> Tensor:
    """Ones and zeros in the shape and type of another tensor."""
    if bits.dtype == torch.bool:
        return bits.to(like.dtype)
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=like.numel())).view(like.shape).to(like.dtype)
