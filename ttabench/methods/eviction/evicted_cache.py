"""A cache of which parts were thrown away: keys and values that stayed, and where in the text they stood.

Shape letters: L layers · B rows · H key/value heads · P slots kept · T tokens read · D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.attention.interface import Watcher, watched
from ttabench.lm.forward.rotary import Rotary
from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix, State
from ttabench.methods.parts.cached import read_on


@dataclass(frozen=True)
class Held:
    """What a state of kept keys and values holds, by the names of its tensors."""

    @classmethod
    def of(cls, state: State) -> Self | None:
        """The cache of a state; None before anything was read."""
        return cls(**state.tensors) if state.tensors else None

    def tensors(self) -> dict[str, Tensor]:
        """As the tensors of a state."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: tensor for name, tensor in parts.items() if tensor is not None}


@dataclass(frozen=True)
class EvictedCache(Held):
    """Keys and values that are left of a text that was read. Padding stands in front of a row's slots."""

    keys: Tensor
    """[L, B, H, P, D]"""
    values: Tensor
    """[L, B, H, P, D]"""
    index: Tensor
    """int32 [L or 1, B, H or 1, P]: place in the text of every slot, ascending; -1 where a slot is padding."""
    next: Tensor
    """int64 [B]: tokens read, BOS included, whatever was thrown away."""
    scores: Tensor | None = None
    """float32 [L, B, H, P]: what a method carries along with the slots."""

    @property
    def valid(self) -> Tensor:
        """bool [B, P]: which slots are no padding (the same ones in all layers and heads)."""
        return self.index[0, :, 0] >= 0

    def slots(self) -> Tensor:
        """int64 [B, P]: number of each slot in its row, padding not counted."""
        return (self.valid.long().cumsum(1) - 1).clamp(min=0)

    def prefix(self, rotary: Rotary | None) -> Prefix:
        """Keys ready for use, with the position of the text that follows."""
        valid_BP = self.valid
        keys = self.keys if rotary is None else rotary.rotate(self.keys, self.slots())
        following_B = self.next if rotary is None else valid_BP.sum(1)
        mask_BP = None if bool(valid_BP.all()) else valid_BP
        places = None if rotary is not None else tuple(self.index.long().unbind(0))
        layers = tuple(keys.unbind(0)), tuple(self.values.unbind(0))
        return Prefix(*layers, following_B, mask_BP, holds_bos=True, positions_LBHP=places)

    def select(self, rows_N: Tensor) -> EvictedCache:
        """These rows, in this order; one row serves any number without a copy."""

        def pick(tensor: Tensor, dim: int) -> Tensor:
            if tensor.shape[dim] > 1:
                return tensor.index_select(dim, rows_N)
            return tensor.expand(*tensor.shape[:dim], len(rows_N), *tensor.shape[dim + 1 :])

        return EvictedCache(**{name: pick(part, int(name != "next")) for name, part in self.tensors().items()})

    def compact(self) -> EvictedCache:
        """The same with the padding of each row in front, so that neighbours in the cache are neighbours in the row."""
        valid_BS = self.valid
        if bool((valid_BS[:, 1:] >= valid_BS[:, :-1]).all()):
            return self
        return self.take(valid_BS.long().argsort(dim=1, stable=True)[None, :, None])

    def take(self, slots_LBHP: Tensor) -> EvictedCache:
        """Only these slots, -1 for padding; L and H may be 1, for the same slots everywhere. One row gives to many."""
        held = self.index.shape[-1]
        if slots_LBHP.shape[-1] == held and bool((slots_LBHP == torch.arange(held, device=slots_LBHP.device)).all()):
            return self
        parts, chosen_LBHP = self.tensors(), slots_LBHP.clamp(min=0)
        next_B = parts.pop("next")
        parts = {name: _gathered(part, chosen_LBHP) for name, part in parts.items()}
        parts["index"] = parts["index"].masked_fill(slots_LBHP < 0, -1)
        return EvictedCache(**parts, next=next_B.expand(parts["keys"].shape[1]))


def _gathered(source_LBHS: Tensor, slots_LBHP: Tensor) -> Tensor:
    """Slots of a tensor [L, B, H, S] or [L, B, H, S, D]; sizes of 1 in front are shared, on either side."""
    *own, held = source_LBHS.shape[:4]
    front = [max(sizes) for sizes in zip(own, slots_LBHP.shape[:3], strict=True)]
    first_LBH1 = torch.arange(math.prod(own), device=slots_LBHP.device).view(*own, 1) * held
    rows_N = (first_LBH1 + slots_LBHP).expand(*front, -1).flatten()
    table = source_LBHS.reshape(-1, *source_LBHS.shape[4:])
    return table.index_select(0, rows_N).view(*front, -1, *source_LBHS.shape[4:])


def check_room(lm: LM, kept: EvictedCache | None, mask_BT: Tensor, rotary: Rotary | None) -> None:
    """Whether the tokens of a text have positions left."""
    counts_B = mask_BT.sum(1)
    if kept is not None:
        counts_B = counts_B + (kept.next if rotary is None else kept.valid.sum(1))
    worst = int(counts_B.max())
    if worst > lm.max_positions:
        hint = "Read less (--task-set documents=N) or give a --model with more positions."
        if ways_of(lm).rotary:
            hint = "Read in pieces that move up: --set positions=cache --set chunk=256, and a budget in tokens."
        raise UserError(f"A window of {worst} tokens exceeds the {lm.max_positions} positions of {lm.name}.", hint)


@torch.no_grad()
def extended(
    lm: LM,
    kept: EvictedCache | None,
    ids_BT: Tensor,
    mask_BT: Tensor,
    rotary: Rotary | None,
    watcher: Watcher | None = None,
) -> EvictedCache:
    """Read a text on top of what was kept; nothing is thrown away yet, and carried scores are dropped. `kept`: what
    was read before; None at the start of a text, whose first token is then BOS where the model has one; `mask_BT`:
    bool, false where a row is padded, in front; `rotary`: store keys unrotated; None leaves them as the model
    rotated them."""
    check_room(lm, kept, mask_BT, rotary)
    with watched(watcher):
        whole = read_on(lm, None if kept is None else kept.prefix(rotary), ids_BT, mask_BT)
    return joined(kept, whole, mask_BT, rotary)


def joined(kept: EvictedCache | None, whole: Prefix, mask_BT: Tensor, rotary: Rotary | None) -> EvictedCache:
    """The kept cache, and behind it the text at the end of a prefix, read on top of it."""
    tokens = mask_BT.shape[1]
    # on one device, wherever the layers are
    keys, values = (
        torch.stack([layer[:, :, -tokens:].to(mask_BT.device) for layer in layers])
        for layers in (whole.keys_LBHPD, whole.values_LBHPD)
    )
    steps_BT = mask_BT.long().cumsum(1) - 1
    if rotary is not None:
        first_B1 = 0 if kept is None else kept.valid.sum(1, keepdim=True)
        keys = rotary.unrotate(keys, (first_B1 + steps_BT).clamp(min=0))
    read_B = mask_BT.sum(1) if kept is None else kept.next + mask_BT.sum(1)
    index_BT = (read_B[:, None] - mask_BT.sum(1, keepdim=True) + steps_BT).masked_fill(~mask_BT, -1).int()
    new = EvictedCache(keys, values, index_BT[None, :, None], read_B)
    return new if kept is None else behind(kept, new)


def behind(one: EvictedCache, other: EvictedCache) -> EvictedCache:
    """One in front of the other; what was read is what the later one says."""
    keys, values = (torch.cat(both, 3) for both in ((one.keys, other.keys), (one.values, other.values)))
    index = other.index.expand(one.index.shape[0], -1, one.index.shape[2], -1)
    return EvictedCache(keys, values, torch.cat([one.index, index], 3), other.next)


@dataclass(frozen=True, kw_only=True)
class RaggedCache(Held):
    """Kept keys and values of one reader: by layer, then by head, in the order of the text."""

    keys: Tensor
    """[S, D]"""
    values: Tensor
    """[S, D]"""
    index: Tensor
    """int32 [S]: place in the text."""
    scores: Tensor | None = None
    """float32 [S]: by which a slot stays or goes when more is read; None where nothing more is read."""
    bias: Tensor | None = None
    """float32 [S]: what is added to its attention scores; None for nothing."""
    counts: Tensor
    """int32 [L, 1, H]: slots of every layer and head."""
    next: Tensor
    """int64 [1]: tokens read, BOS included."""

    def held(self) -> Tensor:
        """bool [L, 1, H, P]: which of the padded slots are there; padding stands behind."""
        return torch.arange(int(self.counts.max()), device=self.counts.device) < self.counts[..., None]

    def padded(self, flat_S: Tensor, fill: float) -> Tensor:
        """[L, 1, H, P] or [L, 1, H, P, D] of a tensor of slots; padding holds `fill`."""
        held_LBHP = self.held()
        padded = flat_S.new_full((*held_LBHP.shape, *flat_S.shape[1:]), fill)
        padded[held_LBHP] = flat_S
        return padded

    def prefix(self, rotary: None = None) -> Prefix:  # noqa: ARG002  # keys stay where they stood
        """The slots, hidden where they are padding, with the position of the text that follows."""
        held_LBHP = self.held()
        places = torch.where(held_LBHP, self.padded(self.index, 0).long(), self.next - 1)
        bias_LBHP = self.padded(self.keys.new_zeros(len(self.keys)) if self.bias is None else self.bias, -math.inf)
        return Prefix(
            tuple(self.padded(self.keys, 0).unbind(0)),
            tuple(self.padded(self.values, 0).unbind(0)),
            self.next,
            holds_bos=True,
            bias_LBHP=None if self.bias is None and bool(held_LBHP.all()) else tuple(bias_LBHP.unbind(0)),
            positions_LBHP=tuple(places.unbind(0)),
        )
