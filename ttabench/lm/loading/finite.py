"""Whether tensors hold finite numbers only: weights, checkpoints and states where they are read, and what is answered.

A log-probability of minus infinity is refused as well: a continuation of probability 0 has an infinite perplexity, and
no mean with it is a number. Finite logits never give one; masks belong in front of the keys, not on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ttabench.core.errors import UserError


class NotFinite(UserError):
    """Answers that are no numbers."""


def refuse_not_finite(values: Tensor) -> None:
    """See that logits or log-probabilities that answers are made of are numbers."""
    if not bool(torch.isfinite(values).all()):
        fault = "The model's logits are not finite (NaN or infinity)."
        raise NotFinite(fault, "Try --dtype float32, and check the weights, checkpoint or state.")


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity; None where all are finite.

    One pass over each tensor, without a copy: the extremes of a tensor are NaN where it holds one.
    """
    for name, tensor in tensors:
        if not tensor.is_floating_point() or tensor.itemsize < 2 or tensor.is_meta or not tensor.numel():
            continue
        extremes = torch.stack(torch.aminmax(tensor.detach()))
        if not bool(torch.isfinite(extremes).all()):
            return name
    return None
