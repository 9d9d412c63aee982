"""The newest token ids of every row, as tensors of a state: what is read again in front of every query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ttabench.lm.forward.tokens import pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch


def appended(lm: LM, tensors: Mapping[str, Tensor], rows_new: Sequence[Sequence[int]], limit: int) -> dict[str, Tensor]:
    """The last `limit` ids of each row once these are read: "tokens" [B, T] padded behind, "lengths" [B]."""
    kept = [[*old, *new] for old, new in zip(ids_of(tensors, len(rows_new)), rows_new, strict=True)]
    tokens_BT, mask_BT = pad([row[-limit:] for row in kept], lm.pad_id, "right")
    return {"tokens": tokens_BT.to(lm.device), "lengths": mask_BT.sum(1).to(lm.device)}


def ids_of(tensors: Mapping[str, Tensor], rows: int) -> list[list[int]]:
    """These ids, row by row; empty rows while nothing is read."""
    if "tokens" not in tensors:
        return [[] for _ in range(rows)]
    pairs = zip(tensors["tokens"], tensors["lengths"].tolist(), strict=True)
    return [row[:length].tolist() for row, length in pairs]


def window_of(tensors: Mapping[str, Tensor]) -> Patch:
    """These ids in the window, as wide as the longest row; an empty patch where no row has any."""
    width = int(tensors["lengths"].max()) if "tokens" in tensors else 0
    if not width:
        return Patch()
    lengths_B = tensors["lengths"]
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    return Patch(tokens_BT=tensors["tokens"][:, :width], tokens_mask_BT=mask_BT)
