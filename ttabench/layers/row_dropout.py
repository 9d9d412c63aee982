"""Dropout whose zeros belong to a row: the same whether the row is alone or in a batch, and when a layer runs again.

    zeros = RowDropout(0.05, seeds=[3, 4], lengths=[500, 320], device, again=True)
    zeros.of("model.layers.0.mlp.up_proj")(x_BTI)

Every row draws from a generator of its own, for its own tokens, in the order that the maps are met; padding draws
nothing. What was drawn is kept as bits until a layer that is computed again asks for it.

Shape letters: B rows · T tokens · I features in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor


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

    def of(self, name: str) -> Callable[[Tensor], Tensor]:
        """That of the map of this name, from x [B, T, I] to the same with zeros."""
        return partial(self._applied, name)

    def _applied(self, name: str, x_BTI: Tensor) -> Tensor:
        if name in self._kept:
            stays_BTI = _unpacked(self._kept.pop(name), x_BTI)
        else:
            stays_BTI = self._drawn(x_BTI)
            if self._again:
                self._kept[name] = _packed(stays_BTI)
        return x_BTI * stays_BTI.div_(1 - self._share)

    def _drawn(self, x_BTI: Tensor) -> Tensor:
        stays_BTI = torch.empty_like(x_BTI, requires_grad=False)
        for stays_TI, length, generator in zip(stays_BTI, self._lengths, self._generators, strict=True):
            stays_TI[:length].bernoulli_(1 - self._share, generator=generator)
            stays_TI[length:] = 1.0
        return stays_BTI


def _packed(stays: Tensor) -> Tensor:
    """Eight in a byte on a CPU, else one."""
    if stays.device.type != "cpu":
        return stays.bool()
    return torch.from_numpy(np.packbits(stays.bool().numpy()))


def _unpacked(packed: Tensor, like: Tensor) -> Tensor:
    if packed.device.type != "cpu":
        return packed.to(like.dtype)
    flat = np.unpackbits(packed.numpy(), count=like.numel())
    return torch.from_numpy(flat).view(like.shape).to(like.dtype)
