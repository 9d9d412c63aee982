"""A key/value cache among the tensors of a state, and as the prefix that it is.

tensors = cached(prefix)          keys and values [L, B, H, P, D], next position [B], mask [B, P] where slots are empty
prefix = prefix_of(tensors)       None where nothing was cached
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ttabench.lm.patch import Prefix


def cached(prefix: Prefix) -> dict[str, Tensor]:
    """A prefix of plain slots, the first of them BOS where the model has one, as tensors of a state."""
    tensors = {
        "keys": torch.stack(prefix.keys_LBHPD),
        "values": torch.stack(prefix.values_LBHPD),
        "next": prefix.next_position_B,
    }
    if prefix.mask_BP is not None and not bool(prefix.mask_BP.all()):
        tensors["mask"] = prefix.mask_BP
    return tensors


def prefix_of(tensors: Mapping[str, Tensor]) -> Prefix | None:
    """The value that `cached` put there."""
    if "keys" not in tensors:
        return None
    keys, values = tuple(tensors["keys"].unbind(0)), tuple(tensors["values"].unbind(0))
    return Prefix(keys, values, tensors["next"], tensors.get("mask"), holds_bos=True)
