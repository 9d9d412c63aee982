"""States of evicting methods: kept keys and values, and the selection of kept slots.

One slot is one key and value of the KV cache. A row is one sequence of the batch.

Shape letters: L layers · B rows · H key/value heads · S slots · P slots kept · T tokens ·
    D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from ttabench.lm.forward.capabilities import Rotary, get_capabilities
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix, State
from ttabench.methods.parts.kept import model_cache_of, name_model_cache


@dataclass(frozen=True)
class CacheTensors:
    """Base class of caches: dataclasses with the tensors of a state as fields."""

    model_cache: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    """Recurrent states of a hybrid model after the text, see `Prefix.model_cache`."""

    @classmethod
    def of(cls, state: State) -> Self | None:
        """Return the cache of a state, or None if nothing was read."""
        if not state.tensors:
            return None
        own = {part.name for part in fields(cls)} & state.tensors.keys()
        return cls(
            **{name: state.tensors[name] for name in own}, model_cache=model_cache_of(state.tensors)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the fields."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor)}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state."""
        return {**self.tensors(), **name_model_cache(self.model_cache)}


@dataclass(frozen=True)
class EvictedCache(CacheTensors):
    """Kept keys and values of a batch of rows. Shorter rows are padded in front."""

    keys: Tensor
    """[L, B, H, P, D]"""
    values: Tensor
    """[L, B, H, P, D]"""
    index: Tensor
    """int32 [L or 1, B, H or 1, P]: text position of every slot, ascending; -1 for padding."""
    next: Tensor
    """int64 [B]: tokens read, including BOS and evicted tokens."""
    scores: Tensor | None = None
    """float32 [L, B, H, P]: scores of the slots, for methods that store them."""

    @property
    def valid(self) -> Tensor:
        """Mask of slots that are not padding, bool [B, P], equal in all layers and heads."""
        return self.index[0, :, 0] >= 0

    def slots(self) -> Tensor:
        """Return the index of each slot among those of its row, int64 [B, P]; 0 for padding."""
        return (self.valid.long().cumsum(1) - 1).clamp(min=0)

    def prefix(self, rotary: Rotary | None) -> Prefix:
        """Return the cache as a prefix.

        With `rotary`, the keys are rotated by their slot, so the text continues at the next slot.
        Otherwise the text continues at its original position.
        """
        valid_BP = self.valid
        if rotary is None:
            keys = self.keys
            next_position_B = self.next
            positions_LBHP = tuple(self.index.long().unbind(0))
        else:
            keys = rotary.rotate(self.keys, self.slots(), inverse=False)
            next_position_B = valid_BP.sum(1)
            positions_LBHP = None
        mask_BP = None if bool(valid_BP.all()) else valid_BP
        layers = tuple(keys.unbind(0)), tuple(self.values.unbind(0))
        return Prefix(
            *layers,
            next_position_B,
            mask_BP,
            holds_bos=True,
            positions_LBHP=positions_LBHP,
            model_cache=self.model_cache,
        )

    def select(self, rows_N: Tensor) -> EvictedCache:
        """Select rows by index, in this order. A single row is expanded without a copy."""

        def pick(tensor: Tensor, dim: int) -> Tensor:
            if tensor.shape[dim] > 1:
                return tensor.index_select(dim, rows_N)
            return tensor.expand(*tensor.shape[:dim], len(rows_N), *tensor.shape[dim + 1 :])

        parts: dict[str, Any] = {
            name: pick(part, int(name != "next")) for name, part in self.tensors().items()
        }
        return replace(self, **parts)

    def compact(self) -> EvictedCache:
        """Move the padding of each row to the front, so that its slots are contiguous."""
        valid_BS = self.valid
        if bool((valid_BS[:, 1:] >= valid_BS[:, :-1]).all()):
            return self
        return self.take(valid_BS.long().argsort(dim=1, stable=True)[None, :, None])

    def evict(
        self,
        scores_LBHS: Tensor,
        budget_B: Tensor,
        *,
        last_B: Tensor,
        first_B: Tensor | None = None,
    ) -> EvictedCache:
        """Keep the slots with the highest scores, at most `budget_B` per row.

        L and H may be 1 if all layers or heads keep the same slots.

        Args:
            last_B: last slots of each row that are kept whatever their scores.
            first_B: the same for first slots.
        """
        valid_BS = self.valid
        stays_BS = newest_slots(valid_BS, last_B)
        if first_B is not None:
            stays_BS |= valid_BS & (valid_BS.long().cumsum(1) <= first_B[:, None])
        scores = scores_LBHS.masked_fill(stays_BS[:, None], math.inf)
        scores = scores.masked_fill(~valid_BS[:, None], -math.inf)
        return self.take(kept_slots(scores, budget_B))

    def take(self, slots_LBHP: Tensor) -> EvictedCache:
        """Keep only these slots, given by their index; -1 adds padding.

        L and H may be 1 if all layers or heads keep the same slots. A single row is expanded.
        """
        all_slots_S = torch.arange(self.index.shape[-1], device=slots_LBHP.device)
        if slots_LBHP.shape[-1] == len(all_slots_S) and bool((slots_LBHP == all_slots_S).all()):
            return self
        chosen_LBHP = slots_LBHP.clamp(min=0)
        parts = self.tensors()
        next_B = parts.pop("next")
        taken: dict[str, Any] = {
            name: _gather_slots(part, chosen_LBHP) for name, part in parts.items()
        }
        taken["index"] = taken["index"].masked_fill(slots_LBHP < 0, -1)
        return replace(self, **taken, next=next_B.expand(taken["keys"].shape[1]))


def amounts_by_row(amounts: Callable[[int], Sequence[int]], read_B: Tensor) -> tuple[Tensor, ...]:
    """Compute amounts from the tokens that each row has read; one int64 [B] per amount."""
    return read_B.new_tensor([amounts(read) for read in read_B.tolist()]).unbind(1)


def newest_slots(valid_BS: Tensor, amount_B: Tensor) -> Tensor:
    """Return the mask of the last `amount_B` valid slots of each row, bool [B, S]."""
    from_end_BS = valid_BS.long().flip(1).cumsum(1).flip(1)
    return valid_BS & (from_end_BS <= amount_B[:, None])


def kept_slots(scores_LBHS: Tensor, budget_B: Tensor) -> Tensor:
    """Select the slots with the highest scores, int64 [L, B, H, P], ascending.

    P is the largest number of slots kept by a row; other rows have -1 in front.

    Args:
        scores_LBHS: scores of all slots; +inf if a slot must be kept, -inf for padding.
        budget_B: maximum slots per row.
    """
    count_B = torch.minimum((scores_LBHS > -math.inf).sum(-1).amax((0, 2)), budget_B)
    width = int(count_B.max())
    best_LBHP = torch.sort(scores_LBHS, dim=-1, descending=True, stable=True).indices[..., :width]
    kept_B1P = torch.arange(width, device=best_LBHP.device) < count_B[:, None, None]
    return best_LBHP.masked_fill(~kept_B1P, -1).sort(-1).values


def _gather_slots(source_LBHS: Tensor, slots_LBHP: Tensor) -> Tensor:
    """Gather slots of a tensor [L, B, H, S] or [L, B, H, S, D].

    L, B or H may be 1 in either tensor, and are then broadcast.
    """
    *sizes, slots = source_LBHS.shape[:4]
    leading = [max(pair) for pair in zip(sizes, slots_LBHP.shape[:3], strict=True)]
    row_start_LBH1 = (
        torch.arange(math.prod(sizes), device=slots_LBHP.device).view(*sizes, 1) * slots
    )
    flat_index = (row_start_LBH1 + slots_LBHP).expand(*leading, -1).flatten()
    table = source_LBHS.reshape(-1, *source_LBHS.shape[4:])
    return table.index_select(0, flat_index).view(*leading, -1, *source_LBHS.shape[4:])


def append_text(
    kept: EvictedCache | None, whole: Prefix, mask_BT: Tensor, rotary: Rotary | None
) -> EvictedCache:
    """Append new text to the kept cache.

    Args:
        whole: prefix that ends with the new text.
        mask_BT: bool, False for padding of the new text.
    """
    tokens, model_cache = mask_BT.shape[1], whole.model_cache
    offset_BT = mask_BT.long().cumsum(1) - 1
    first_slot_B1 = 0 if kept is None else kept.valid.sum(1, keepdim=True)
    position_BT = (first_slot_B1 + offset_BT).clamp(min=0)
    layers = [*zip(whole.keys_LBHPD, whole.values_LBHPD, strict=True)]
    del whole  # a layer is freed when it is copied, unless the caller holds the prefix
    keys, values = (
        part.new_empty(len(layers), *part[:, :, -tokens:].shape, device=mask_BT.device)
        for part in layers[0]
    )
    for layer in reversed(range(len(layers))):
        # layers may be on several devices
        new_keys, new_values = (part[:, :, -tokens:].to(keys.device) for part in layers.pop())
        if rotary is not None and (rotation := rotary.rotations[layer]):
            new_keys = rotation(new_keys, position_BT, inverse=True)
        keys[layer], values[layer] = new_keys, new_values
    new_B = mask_BT.sum(1)
    read_B = new_B if kept is None else kept.next + new_B
    index_BT = ((read_B - new_B)[:, None] + offset_BT).masked_fill(~mask_BT, -1).int()
    new = EvictedCache(keys, values, index_BT[None, :, None], read_B, model_cache=model_cache)
    return new if kept is None else concat_caches(kept, new)


def concat_caches(one: EvictedCache, other: EvictedCache) -> EvictedCache:
    """Concatenate the slots of two caches. `next` comes from `other`, the later text."""
    keys = torch.cat([one.keys, other.keys], 3)
    values = torch.cat([one.values, other.values], 3)
    index = other.index.expand(one.index.shape[0], -1, one.index.shape[2], -1)
    return EvictedCache(
        keys, values, torch.cat([one.index, index], 3), other.next, model_cache=other.model_cache
    )


@dataclass(frozen=True)
class RaggedCache(CacheTensors):
    """Kept keys and values of one sequence, ordered by layer, head and text position."""

    keys: Tensor
    """[S, D]"""
    values: Tensor
    """[S, D]"""
    index: Tensor
    """int32 [S]: position in the text."""
    counts: Tensor
    """int32 [L, 1, H]: number of slots of every layer and head."""
    next: Tensor
    """int64 [1]: tokens read, BOS included."""
    scores: Tensor | None = None
    """float32 [S]: scores for later evictions, or None if nothing more can be read."""
    bias: Tensor | None = None
    """float32 [S]: bias of the attention scores, or None."""

    def slot_mask(self) -> Tensor:
        """Return the mask of padded slots, bool [L, 1, H, P], with padding at the end."""
        slots_P = torch.arange(int(self.counts.max()), device=self.counts.device)
        return slots_P < self.counts[..., None]

    def padded(self, flat_S: Tensor, fill: float) -> Tensor:
        """Pad a tensor of slots to [L, 1, H, P] or [L, 1, H, P, D] with `fill`."""
        mask_LBHP = self.slot_mask()
        padded = flat_S.new_full((*mask_LBHP.shape, *flat_S.shape[1:]), fill)
        padded[mask_LBHP] = flat_S
        return padded

    def prefix(self, rotary: None = None) -> Prefix:  # noqa: ARG002  # keys keep their positions
        """Return the cache as a prefix. A bias of -inf hides padding."""
        mask_LBHP = self.slot_mask()
        # any position will do for padding, which the bias hides
        positions_LBHP = torch.where(mask_LBHP, self.padded(self.index, 0).long(), self.next - 1)
        bias_S = self.keys.new_zeros(len(self.keys)) if self.bias is None else self.bias
        bias_LBHP = tuple(self.padded(bias_S, -math.inf).unbind(0))
        return Prefix(
            tuple(self.padded(self.keys, 0).unbind(0)),
            tuple(self.padded(self.values, 0).unbind(0)),
            self.next,
            holds_bos=True,
            bias_LBHP=None if self.bias is None and bool(mask_LBHP.all()) else bias_LBHP,
            positions_LBHP=tuple(positions_LBHP.unbind(0)),
            model_cache=self.model_cache,
        )


def pack_slots(cache: EvictedCache, stays_LHP: Tensor, **changed: Tensor) -> RaggedCache:
    """Pack the kept slots of a cache of one sequence.

    Args:
        stays_LHP: bool, True for kept slots.
        changed: values [S, D] that replace those of the cache, or biases [S].
    """
    parts = {
        name: part.expand(*cache.keys.shape[:4], *part.shape[4:])[:, 0][stays_LHP]
        for name, part in cache.tensors().items()
        if name != "next"
    }
    return RaggedCache(
        **{**parts, **changed},
        counts=stays_LHP.sum(-1, dtype=torch.int32)[:, None],
        next=cache.next,
        model_cache=cache.model_cache,
    )


def drop_invisible(lm: LM, cache: EvictedCache) -> EvictedCache:
    """Set the scores of slots to -inf that the next token does not see in a local layer."""
    assert cache.scores is not None, "slots have scores"
    scores = cache.scores.clone()
    next_position = cache.next.to(scores.device)
    for layer, is_visible in get_capabilities(lm).local_masks.items():
        positions = cache.index[layer if len(cache.index) > 1 else 0].long()
        scores[layer].masked_fill_(~is_visible(0, 0, next_position, positions), -math.inf)
    return replace(cache, scores=scores)
