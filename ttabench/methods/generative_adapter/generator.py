"""From hidden states to a low-rank weight delta of one linear map.

Chen et al., arXiv 2411.05877; n, an RMSNorm with a learned weight, is of the released code.
Shape letters: B rows · T tokens · C width of the model · R values · K keys · Q rank · I/O features in and out.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ttabench.core.environment import forked_draws
from ttabench.lm.patch import LowRank
from ttabench.methods.generative_adapter import GenerativeAdapterSettings

EPSILON = 1e-6
"""Of the RMSNorm, and of the division by a norm (released code)."""


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
        """The delta that a sum becomes; `learning`: by what gradients go through; `found`: its `directions`, if
        known. Returns factors of rank `rank`, or with another norm of rank R; of a sum of zeros, zeros."""
        s = self.settings
        if s.norm == "svd":
            left_BRQ, right_BQK = found or (learned_directions if learning else directions)(sum_BRK, s)
            return LowRank(right_BQK @ self.queries, s.scale * self.outputs @ left_BRQ)
        normed_BRK = sum_BRK * torch.rsqrt(sum_BRK.square().sum((-2, -1), keepdim=True) + EPSILON)
        return LowRank(normed_BRK @ self.queries, s.scale * self.outputs[None])


def _kaiming(rows: int, columns: int) -> nn.Parameter:
    """As the released code begins: normal, of variance 1 / (3 columns)."""
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(3 * columns))


SMALLEST_GAP = 1e-7
"""Of two singular values that are kept: nearer, the gradient of their vectors explodes, and the released code leaves
the delta out."""
SAME = 1e-6
"""A kept and a dropped singular value whose squares differ by less than this share of the largest square: which of
their directions is kept is chance, and no gradient turns one into the other."""

NOTHING = 1e-6
"""Singular values of no more than this share of the largest have no vectors that could be told from noise."""


def directions(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
    """The first singular vectors, left [B, R, Q] and right [B, Q, K]; zeros in the place of what is noise."""
    (left_BRN, values_BN, right_BNK), rank = decomposed(sum_BRK), settings.rank
    return left_BRN[..., :rank] * _kept(values_BN[..., :rank], settings)[..., None, :], right_BNK[..., :rank, :]


def decomposed(sum_BRK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left singular vectors [B, R, N], singular values [B, N], falling, and right singular vectors [B, N, K]."""
    if sum_BRK.device.type == "cuda":
        # many equal eigenvalues, as chunks of few tokens have, may not converge
        with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            return by_eigenvectors(sum_BRK)
    left_BRN, values_BN, right_BNK = torch.linalg.svd(sum_BRK, full_matrices=False)
    return left_BRN, values_BN, right_BNK


def by_eigenvectors(sum_BRK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The decomposition by eigenvectors of S S' in float64, which a GPU finds many times as fast; R singular values.

    It tells singular values down to 1e-7 of the largest; the right vectors of smaller ones are no unit vectors.
    """
    dtype, sum_BRK = sum_BRK.dtype, sum_BRK.double()
    squares_BR, left_BRR = torch.linalg.eigh(sum_BRK @ sum_BRK.mT)
    left_BRR, values_BR = left_BRR.flip(-1), squares_BR.clamp(min=0.0).sqrt().flip(-1)
    right_BRK = left_BRR.mT @ sum_BRK / values_BR.clamp(min=torch.finfo(torch.float64).tiny)[..., None]
    return left_BRR.to(dtype), values_BR.to(dtype), right_BRK.to(dtype)


def learned_directions(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
    """The same with gradients: exact, or those of the randomised decomposition. With the latter zeros where two
    singular values lie so near that no gradient could be taken, as in the released code: of fewer tokens than
    `rank`, too."""
    if settings.gradient == "exact":
        directions: tuple[Tensor, Tensor] = _Directions.apply(sum_BRK, settings)  # type: ignore[no-untyped-call]
        return directions
    left_BRQ, values_BQ, right_BQK = _lowrank(sum_BRK, settings)
    apart_B11 = ((values_BQ[..., :-1] - values_BQ[..., 1:]).detach() >= SMALLEST_GAP).all(-1)[..., None, None]
    if bool(apart_B11.all()):
        return left_BRQ, right_BQK
    # no gradient may come out of theirs, not even times zero
    other_RK = torch.zeros_like(sum_BRK[0])
    other_RK.diagonal().copy_(torch.arange(1, min(other_RK.shape) + 1))
    left_BRQ, _, right_BQK = _lowrank(torch.where(apart_B11, sum_BRK, other_RK), settings)
    return left_BRQ * apart_B11, right_BQK


class _Directions(torch.autograd.Function):
    """The first singular vectors, with the gradient of their product.

    With S = U diag(s) V', F = U' dS V and h 1 where a value is kept, 0 where not, d(U diag(h) V') is
    U (a * F + b * F') V' of a_ij = (h_i s_i - h_j s_j) / (s_i^2 - s_j^2) and b_ij = (h_i s_j - h_j s_i) / the same:
    1 / (s_i + s_j) and its negative for two that are kept, 0 for two that are not. Of directions that S has nothing
    in, s_j is 0: a is 1 / s_i and b is 0, so that all of them together are a projection, and need no vectors.
    """

    @staticmethod
    def forward(ctx: Any, sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor]:
        left_BRN, values_BN, right_BNK = decomposed(sum_BRK)
        kept_BN = _kept(values_BN, settings) & (
            torch.arange(values_BN.shape[-1], device=values_BN.device) < settings.rank
        )
        seen_BN = (values_BN > NOTHING * values_BN[..., :1])[..., None]
        ctx.save_for_backward(left_BRN * seen_BN.mT, values_BN, kept_BN, right_BNK * seen_BN)
        return left_BRN[..., : settings.rank] * kept_BN[..., None, : settings.rank], right_BNK[..., : settings.rank, :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_left_BRQ: Tensor, to_right_BQK: Tensor) -> tuple[Tensor, None]:
        left_BRN, values_BN, kept_BN, right_BNK = ctx.saved_tensors
        rank = to_left_BRQ.shape[-1]
        kept_BQ1 = kept_BN[..., :rank, None]
        to_left_BRQ, to_right_BQK = to_left_BRQ * kept_BQ1.mT, to_right_BQK * kept_BQ1
        # the gradient of the product in the basis of singular vectors; of two that are dropped it does not count
        columns_BNQ, rows_BQN = left_BRN.mT @ to_left_BRQ, to_right_BQK @ right_BNK.mT
        whole_BNN = pad(columns_BNQ, (0, values_BN.shape[-1] - rank))
        whole_BNN[..., :rank, :] = torch.where(kept_BQ1, rows_BQN, whole_BNN[..., :rank, :])
        same_BNN, turned_BNN = _weights(values_BN, kept_BN)
        inner_BNN = same_BNN * whole_BNN + (turned_BNN * whole_BNN).mT
        over_BQ1 = kept_BQ1 / values_BN[..., :rank, None].masked_fill(~kept_BQ1, 1.0)
        beside_BRQ = (to_left_BRQ - left_BRN @ columns_BNQ) * over_BQ1.mT
        beside_BQK = (to_right_BQK - rows_BQN @ right_BNK) * over_BQ1
        first = left_BRN[..., :rank] @ beside_BQK + beside_BRQ @ right_BNK[..., :rank, :]
        return left_BRN @ inner_BNN @ right_BNK + first, None


def _weights(values_BN: Tensor, kept_BN: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of `_Directions`, [B, N, N]."""
    one, other = values_BN[..., :, None], values_BN[..., None, :]
    kept_one, kept_other = kept_BN[..., :, None], kept_BN[..., None, :]
    both, either = kept_one & kept_other, kept_one ^ kept_other
    sums = (one + other).masked_fill(~both, 1.0)
    squares = one.square() - other.square()
    apart = either & (squares.abs() > SAME * values_BN[..., :1, None].square())
    safe = squares.masked_fill(~apart, 1.0)
    cross_same = (kept_one * one - kept_other * other) / safe * apart
    cross_turned = (kept_one * other - kept_other * one) / safe * apart
    return both / sums + cross_same, cross_turned - both / sums


def _kept(values_BQ: Tensor, settings: GenerativeAdapterSettings) -> Tensor:
    """bool [B, Q], false where a singular value is noise."""
    kept_BQ: Tensor = (values_BQ > settings.rank_tol * values_BQ[..., :1]) & (values_BQ > 0)
    return kept_BQ


def _lowrank(sum_BRK: Tensor, settings: GenerativeAdapterSettings) -> tuple[Tensor, Tensor, Tensor]:
    """The randomised decomposition; what is random depends on the seed alone, and is the same for all rows."""
    with forked_draws(sum_BRK.device):
        torch.manual_seed(settings.seed)
        left_BRQ, values_BQ, right_BKQ = torch.svd_lowrank(sum_BRK, q=settings.rank, niter=settings.niter)
    return left_BRQ, values_BQ, right_BKQ.mT
