"""What one document's tokens lose together, each by its weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ttabench.methods.online.settings import OnlineSettings


def weighted_loss(settings: OnlineSettings, logprobs: Tensor, weights_T: Tensor) -> Tensor:
    """The loss of a document: the weighted sum of its tokens' losses over the normaliser; differentiable.

    Args:
        settings: the normaliser.
        logprobs: of the document's tokens; of all but the first where nothing stands before it.
        weights_T: of all of its tokens.
    """
    weights = weights_T[len(weights_T) - len(logprobs) :].to(logprobs)
    total = -(logprobs * weights).sum()
    if settings.normaliser == "padded":
        return total / (settings.pad_len - 1)
    if settings.normaliser == "tokens":
        return total / len(logprobs)
    return total / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
