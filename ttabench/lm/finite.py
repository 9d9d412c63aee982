"""Whether tensors hold finite numbers only: what does not is refused where weights, checkpoints and states are read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity; None where all are finite.

    One pass over each tensor, without a copy: the extremes of a tensor are NaN where it holds one.

    Args:
        tensors: names and tensors; those of whole numbers, of 8-bit formats or without data are skipped.
    """
    for name, tensor in tensors:
        if not tensor.is_floating_point() or tensor.itemsize < 2 or tensor.is_meta or not tensor.numel():
            continue
        extremes = torch.stack(torch.aminmax(tensor.detach()))
        if not bool(torch.isfinite(extremes).all()):
            return name
    return None
