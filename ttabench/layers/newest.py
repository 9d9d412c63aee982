"""The newest token ids of every row, as tensors of a state: what is read again in front of every query.

tensors = appended(lm, state.tensors, [[5, 6, 7]], limit=2)      {"tokens": [[6, 7]], "lengths": [2]}
patch = window_of(tensors)                                       Patch(tokens_BT=[[6, 7]], ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ttabench.lm import LM
from ttabench.stream import pad
from ttabench.types import Patch


def appended(lm: LM, tensors: Mapping[str, Tensor], rows_new: Sequence[Sequence[int]], limit: int) -> dict[str, Tensor]:
    """The last `limit` ids of each row once these are read: "tokens" [B, T] padded behind, "lengths" [B]."""
    kept = [list(new) for new in rows_new]
    if "tokens" in tensors:
        lengths = tensors["lengths"].tolist()
        old = [row[:length].tolist() for row, length in zip(tensors["tokens"], lengths, strict=True)]
        kept = [[*row, *new] for row, new in zip(old, kept, strict=True)]
    tokens_BT, mask_BT = pad([row[-limit:] for row in kept], lm.pad_id, "right")
    return {"tokens": tokens_BT.to(lm.device), "lengths": mask_BT.sum(1).to(lm.device)}


def window_of(tensors: Mapping[str, Tensor]) -> Patch:
    """These ids in the window; an empty patch while nothing is read."""
    if "tokens" not in tensors:
        return Patch()
    tokens_BT, lengths_B = tensors["tokens"], tensors["lengths"]
    mask_BT = torch.arange(tokens_BT.shape[1], device=lengths_B.device) < lengths_B[:, None]
    return Patch(tokens_BT=tokens_BT, tokens_mask_BT=mask_BT)
