"""From hidden states to a low-rank weight delta of one linear map.

    S += A2 n(H)' n(H) B1                   Generator.summed, equation 3
    delta W = s A1 norm(S) B2               Generator.delta, equations 6 to 9

S is a sum of (value, key) pairs of tokens, and what enters the map is the query. norm: the first r singular values set
to 1 and the others to 0; or S over its Frobenius norm or its largest singular value. Everything is float32.

Chen et al., arXiv 2411.05877; n, an RMSNorm with a learned weight, is of the released code.

Shape letters: B rows · T tokens · C width of the model · R values · K keys · Q rank · I/O features in and out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter.settings import GenerativeAdapterSettings

EPSILON = 1e-6
"""Of the RMSNorm, and of both divisions (released code)."""
SMALLEST_GAP = 1e-7
"""Of two singular values that are kept: nearer, the gradient of their vectors explodes, and the delta is left out."""


class Generator(nn.Module):
    """What makes the deltas of one linear map; before training they are zero.

    Args:
        width: C, of the model.
        features_in: I, of the map.
        features_out: O.
        settings: sizes.
    """

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

    def delta(self, sum_BRK: Tensor, *, learning: bool = False) -> LowRank:
        """The delta that a sum becomes; `learning`: by what gradients go through.

        Returns:
            factors of rank `rank`, or with another norm of rank R; of a sum of zeros, zeros.
        """
        s = self.settings
        if s.norm != "svd":
            normed_BRK = frobenius(sum_BRK) if s.norm == "frobenius" else spectral(sum_BRK)
            return LowRank(normed_BRK @ self.queries, s.scale * self.outputs[None])
        left_BRQ, right_BQK = directions(sum_BRK, s) if not learning else learned_directions(sum_BRK, s)
        return LowRank(right_BQK @ self.queries, s.scale * self.outputs @ left_BRQ)


def frobenius(sum_BRK: Tensor) -> Tensor:
    """Over its Frobenius norm."""
    return sum_BRK * torch.rsqrt(sum_BRK.square().sum((-2, -1), keepdim=True) + EPSILON)


def spectral(sum_BRK: Tensor) -> Tensor:
    """Over its largest singular value."""
    largest_B: Tensor = torch.linalg.matrix_norm(sum_BRK, 2)
    return sum_BRK / (largest_B[..., None, None] + EPSILON)


def directions(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
    """The first singular vectors, left [B, R, Q] and right [B, Q, K]; zeros in the place of what is noise."""
    if settings.svd == "exact":
        left_BRN, values_BN, right_BNK = torch.linalg.svd(sum_BRK, full_matrices=False)
        left_BRQ, values_BQ, right_BQK = (
            left_BRN[..., : settings.rank], values_BN[..., : settings.rank], right_BNK[..., : settings.rank, :]
        )  # fmt: skip
    else:
        left_BRQ, values_BQ, right_BQK = _lowrank(sum_BRK, settings)
    kept_BQ = (values_BQ > settings.rank_tol * values_BQ[..., :1]) & (values_BQ > 0)
    return left_BRQ * kept_BQ[..., None, :], right_BQK


def learned_directions(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
    """The same by the randomised decomposition, whose gradients the paper's generators were trained by.

    Zeros where two singular values lie so near that no gradient could be taken, as in the released code: of fewer
    tokens than `rank`, too.
    """
    left_BRQ, values_BQ, right_BQK = _lowrank(sum_BRK, settings)
    apart_B11 = ((values_BQ[..., :-1] - values_BQ[..., 1:]).detach() >= SMALLEST_GAP).all(-1)[..., None, None]
    if bool(apart_B11.all()):
        return left_BRQ, right_BQK
    # no gradient may come out of theirs, not even times zero
    other_RK = torch.zeros_like(sum_BRK[0])
    other_RK.diagonal().copy_(torch.arange(1, min(other_RK.shape) + 1))
    left_BRQ, _, right_BQK = _lowrank(torch.where(apart_B11, sum_BRK, other_RK), settings)
    return left_BRQ * apart_B11, right_BQK


def _lowrank(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor, Tensor]:
    """The randomised decomposition; what is random depends on the seed alone, and is the same for all rows."""
    devices = [sum_BRK.device] if sum_BRK.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(settings.seed)
        left_BRQ, values_BQ, right_BKQ = torch.svd_lowrank(sum_BRK, q=settings.rank, niter=settings.niter)
    return left_BRQ, values_BQ, right_BKQ.mT


def _kaiming(rows: int, columns: int) -> nn.Parameter:
    """As the released code begins: normal, of variance 1 / (3 columns)."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(3 * columns))
