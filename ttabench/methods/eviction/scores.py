"""Which keys and values to keep: attention received, grouped, and the best so many of it.

SnapKV, arXiv 2404.14469; H2O, arXiv 2306.14048.
Shape letters: L layers · B rows · N query heads · H key/value heads · G = N / H · T queries · S slots · P slots kept ·
    D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ttabench.lm.attention.interface import Call
from ttabench.methods.parts.amount import Amount, in_tokens

BLOCK = 256
"""Queries whose attention weights are alive at a time."""


def tokens_of(amount: Amount, total_B: Tensor) -> Tensor:
    """int64 [B]: the amount in tokens, for rows that have read so many; shares are rounded down, at least 1."""
    return total_B.new_tensor([in_tokens(amount, total) for total in total_B.tolist()])


def column_sums(call: Call, counted_BT: Tensor, block: int = BLOCK) -> Tensor:
    """Attention every slot receives from the counted queries, float32 [B, N, S]: sums of softmax columns. `block`:
    queries at a time; changes memory, not results."""
    counted_BT = counted_BT.to(call.key.device)
    if call.weights is not None:
        return torch.einsum("bnts,bt->bns", call.weights.float(), counted_BT.float())
    rows, count, _, size = call.query.shape
    heads, slots = call.key.shape[1], call.key.shape[2]
    query_BHGTD = call.query.reshape(rows, heads, count // heads, -1, size)
    key_BHDS = call.key.transpose(-1, -2)
    sums_BHGS = torch.zeros(rows, heads, count // heads, slots, device=call.key.device)
    columns = counted_BT.any(0).nonzero().flatten().tolist()
    for begin in range(columns[0], columns[-1] + 1, block) if columns else ():
        part = slice(begin, min(begin + block, columns[-1] + 1))
        scores = query_BHGTD[:, :, :, part].flatten(2, 3) @ key_BHDS  # a group's queries as one matrix
        scores = scores.view(rows, heads, count // heads, -1, slots).float() * call.scaling
        hidden_BH1TS = ~seen(call, part)[:, :, None]
        weights = scores.masked_fill_(hidden_BH1TS, torch.finfo(torch.float32).min).softmax(-1)
        sums_BHGS += torch.einsum("bhgts,bt->bhgs", weights, counted_BT[:, part].float())
    return sums_BHGS.flatten(1, 2)


def seen(call: Call, part: slice) -> Tensor:
    """bool [B or 1, 1 or H, T, S]: which slots the queries of this part see."""
    if call.mask is not None:
        return call.mask[:, :, part]
    tokens, slots = call.query.shape[2], call.key.shape[2]
    own_T1 = torch.arange(slots - tokens, slots, device=call.key.device)[part, None]
    return (torch.arange(slots, device=call.key.device) <= own_T1)[None, None]


class ColumnSums:
    """A watcher that adds up `column_sums` over the forwards of one reading. `held`: slots in front of the text that is
    read."""

    def __init__(self, layers: int, held: int, counted_BT: Tensor) -> None:
        self._held, self._counted_BT = held, counted_BT
        self._sums: list[Tensor | None] = [None] * layers

    def __call__(self, call: Call) -> None:
        """Add the sums of one forward of one layer."""
        tokens, slots = call.query.shape[2], call.key.shape[2]
        begin = slots - tokens - self._held
        sums_BNS, before = column_sums(call, self._counted_BT[:, begin : begin + tokens]), self._sums[call.layer]
        if before is not None:
            sums_BNS[..., : before.shape[-1]] += before
        self._sums[call.layer] = sums_BNS

    def total(self) -> Tensor:
        """float32 [L, B, N, S]"""
        known = [sums for sums in self._sums if sums is not None]
        assert len(known) == len(self._sums), "sums of layers that were never read"
        return torch.stack([sums.to(self._counted_BT.device) for sums in known])


def grouped(scores: Tensor, heads: int, dim: int = 0) -> Tensor:
    """Query heads in this dimension as key/value heads and those that share them: [..., N, ...] as [..., H, G, ...]."""
    split: Tensor = scores.unflatten(dim, (heads, -1))  # type: ignore[no-untyped-call]
    return split


def newest(valid_BS: Tensor, amount_B: Tensor) -> Tensor:
    """bool [B, S]: the last so many valid slots of each row."""
    from_end_BS = valid_BS.long().flip(1).cumsum(1).flip(1)
    return valid_BS & (from_end_BS <= amount_B[:, None])


def kept_slots(scores_LBHS: Tensor, budget_B: Tensor) -> Tensor:
    """Slots with the highest scores, int64 [L, B, H, P] ascending. `scores_LBHS`: +inf where a slot must stay, -inf
    where it must not (padding); `budget_B`: most slots a row keeps; P is what the fullest row keeps, and -1 fills up
    the others, in front."""
    count_B = torch.minimum((scores_LBHS > -math.inf).sum(-1).amax((0, 2)), budget_B)
    width = int(count_B.max())
    best_LBHP = torch.sort(scores_LBHS, dim=-1, descending=True, stable=True).indices[..., :width]
    kept_B1P = torch.arange(width, device=best_LBHP.device) < count_B[:, None, None]
    return best_LBHP.masked_fill(~kept_B1P, -1).sort(-1).values
