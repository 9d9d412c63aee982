"""Layers that hold one set of weights per slot and apply all of them in one batched product.

MAC gives every output token of its amortiser an MLP of its own, and every token of the prefix a feed-forward network of
its own: T or 2*L*Lv small modules. Kept as one stacked weight they are one `baddbmm` instead of a loop of hundreds.

Shape letters: B rows · S slots · I/O features in and out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SlotLinear(nn.Module):
    """S linear maps side by side, each initialised like `nn.Linear`.

    Args:
        slots: number of maps, S.
        features_in: I.
        features_out: O.
        bias: whether every map has a bias of its own.
    """

    def __init__(self, slots: int, features_in: int, features_out: int, bias: bool = True) -> None:
        super().__init__()
        bound = features_in**-0.5
        self.weight = nn.Parameter(torch.empty(slots, features_in, features_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(slots, features_out).uniform_(-bound, bound)) if bias else None

    def forward(self, x_BSI: Tensor) -> Tensor:
        """[B, S, I] -> [B, S, O]; slot s goes through map s."""
        x_SBI = x_BSI.transpose(0, 1)
        if self.bias is None:
            return torch.bmm(x_SBI, self.weight).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], x_SBI, self.weight).transpose(0, 1)


class SlotNorm(nn.Module):
    """S layer norms side by side: one statistic, S gains and shifts."""

    def __init__(self, slots: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(slots, features))
        self.bias = nn.Parameter(torch.zeros(slots, features))

    def forward(self, x_BSI: Tensor) -> Tensor:
        """[B, S, I] -> [B, S, I]."""
        normed = nn.functional.layer_norm(x_BSI, x_BSI.shape[-1:])
        return normed * self.weight + self.bias
