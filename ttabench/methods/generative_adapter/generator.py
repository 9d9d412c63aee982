"""From hidden states to a low-rank weight delta of one linear map.

Chen et al., arXiv 2411.05877; n, an RMSNorm with a learned weight, is of the released code.

Shape letters: B rows · T tokens · C width of the model · R values · K keys · Q rank · I/O features in and out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter.directions import directions, learned_directions
from ttabench.methods.generative_adapter.settings import GenerativeAdapterSettings

EPSILON = 1e-6
"""Of the RMSNorm, and of both divisions (released code)."""


class Generator(nn.Module):
    """The network that makes the deltas of one linear map; before training they are zero."""

    def __init__(self, width: int, features_in: int, features_out: int, settings: GenerativeAdapterSettings) -> None:
        super().__init__()
        self.settings = settings
        self.norm = nn.Parameter(torch.ones(width))
        self.values = _kaiming(settings.inner, width)
        """A2 [R, C]."""
        self.keys = _kaiming(settings.keys, width)
        """B1, transposed [K, C]."""
        self.queries = _kaiming(settings.keys, features_in)
        """B2 [K, I]."""
        self.outputs = nn.Parameter(torch.zeros(features_out, settings.inner))
        """A1 [O, R]."""

    def summed(self, hidden_BTC: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """The outer products of the tokens of every row, summed: [B, R, K]; of padding (`real_BT` false) nothing."""
        hidden_BTC = hidden_BTC.float()
        spread_BT1 = hidden_BTC.square().mean(-1, keepdim=True)
        normed_BTC = hidden_BTC * torch.rsqrt(spread_BT1 + EPSILON) * self.norm
        if real_BT is not None:
            normed_BTC = normed_BTC.masked_fill(~real_BT[..., None], 0.0)
        return (normed_BTC @ self.values.T).mT @ (normed_BTC @ self.keys.T)

    def delta(self, sum_BRK: Tensor, *, learning: bool = False, found: tuple[Tensor, Tensor] | None = None) -> LowRank:
        """The delta that a sum becomes; `learning`: by what gradients go through; `found`: its `directions`, if known.

        Returns:
            factors of rank `rank`, or with another norm of rank R; of a sum of zeros, zeros.
        """
        s = self.settings
        if s.norm != "svd":
            normed_BRK = frobenius(sum_BRK) if s.norm == "frobenius" else spectral(sum_BRK)
            return LowRank(normed_BRK @ self.queries, s.scale * self.outputs[None])
        left_BRQ, right_BQK = found or (learned_directions if learning else directions)(sum_BRK, s)
        return LowRank(right_BQK @ self.queries, s.scale * self.outputs @ left_BRQ)


def frobenius(sum_BRK: Tensor) -> Tensor:
    """Over its Frobenius norm."""
    return sum_BRK * torch.rsqrt(sum_BRK.square().sum((-2, -1), keepdim=True) + EPSILON)


def spectral(sum_BRK: Tensor) -> Tensor:
    """Over its largest singular value."""
    largest_B: Tensor = torch.linalg.matrix_norm(sum_BRK, 2)
    return sum_BRK / (largest_B[..., None, None] + EPSILON)


def _kaiming(rows: int, columns: int) -> nn.Parameter:
    """As the released code begins: normal, of variance 1 / (3 columns)."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(3 * columns))
