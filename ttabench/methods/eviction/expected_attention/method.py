"""Expected Attention: keep the slots with the most attention expected from the next queries.

Devoto et al., arXiv 2510.00636 (section 3; also kvpress: `ExpectedAttentionPress`). Queries before
their rotation are taken as normal with mean m and covariance C. For a key k (scaled), and R the mean
rotation of the next positions, E[exp(q k)] = exp(k R m + k R C R' k / 2). It is normalised over the
slots, averaged over the query heads of a key/value head, and multiplied by the norm of the value.

Shape letters: L layers · N query heads · H key/value heads · G = N / H · S slots · T tokens ·
    D head size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.lm.forward.capabilities import Rotary, Rotation, get_capabilities
from ttabench.methods.eviction.expected_attention import (
    EXPECTED_ATTENTION,
    ExpectedAttentionSettings,
)
from ttabench.methods.eviction.observers import group_heads
from ttabench.methods.eviction.scoring import ScoringMethod


class ExpectedAttention(ScoringMethod[ExpectedAttentionSettings]):
    """Cache of the context, compressed by the attention expected from the next queries."""

    spec = EXPECTED_ATTENTION

    def always_kept(self, read: int) -> tuple[int, int]:  # noqa: ARG002  # base class
        """Return the attention sinks."""
        return self.settings.n_sink, 0

    def score(self, keys: Tensor, values: Tensor, queries: Tensor, next_position: int) -> Tensor:
        """Return expected attention times value norm, 0 for sinks."""
        sinks, tokens, device = self.settings.n_sink, queries.shape[2], keys.device
        positions_T = torch.arange(next_position - tokens, next_position, device=device)
        future_P = torch.arange(next_position, next_position + self.settings.future, device=device)
        rotary = get_capabilities(self.lm).rotary
        if rotary is not None:
            queries = rotary.rotate(queries[:, None], positions_T[None], inverse=True)[:, 0]
        queries = queries[:, :, positions_T >= sinks].float()
        mean_LN1D = queries.mean(2, keepdim=True)
        centred = queries - mean_LN1D
        covariance_LNDD = centred.mT @ centred / centred.shape[2]
        if rotary is not None:
            mean_LN1D = rotate_mean(rotary, mean_LN1D, future_P)
            covariance_LNDD = rotate_mean(rotary, covariance_LNDD, future_P).mT
            covariance_LNDD = rotate_mean(rotary, covariance_LNDD, future_P)
        heads, keys_LH1SD = keys.shape[1], keys[:, :, None, sinks:].float()
        mean, covariance = (group_heads(part, heads, 1) for part in (mean_LN1D, covariance_LNDD))
        exponent_LHGS = (keys_LH1SD * (mean + keys_LH1SD @ covariance / 2)).sum(-1)
        expected_LHS = exponent_LHGS.softmax(-1).mean(2)
        return pad(expected_LHS * values[:, :, sinks:].float().norm(dim=-1), (sinks, 0))


def rotate_mean(rotary: Rotary, x_LNTD: Tensor, positions_P: Tensor) -> Tensor:
    """Return the mean of the rotations of each vector to these positions.

    Rotations are linear in sine and cosine, so that a rotation with their means is the mean.
    """

    def averaged(rotation: Rotation) -> Rotation:
        cos, sin = (part.mean(1, keepdim=True) for part in rotation.angles(positions_P[None]))
        return replace(rotation, angles=lambda _: (cos, sin))

    by_rotation = {rotation: rotation and averaged(rotation) for rotation in rotary.rotations}
    mean_rotary = Rotary([by_rotation[rotation] for rotation in rotary.rotations])
    return mean_rotary.rotate(x_LNTD[:, None], positions_P[None, :1], inverse=False)[:, 0]
