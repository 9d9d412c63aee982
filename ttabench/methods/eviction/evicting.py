"""Base class for evicting methods, their caches (states), and the selection of kept slots.

One slot is one key and value of the KV cache. A row is one sequence of the batch.

Shape letters: L layers · B rows · N query heads · H key/value heads · G = N / H · T queries ·
    S slots · P slots kept · D head size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, zip_longest
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Chunk, Json, Query
from ttabench.lm.attention import AttentionCall, AttentionObserver, observe_attention
from ttabench.lm.forward.capabilities import Rotary, get_capabilities, get_rotary
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import Granularity, Method
from ttabench.methods.eviction import EvictionSettings, split_evenly
from ttabench.methods.parts.kept import extend_prefix

MAX_QUERIES_PER_BLOCK = 256
"""Queries whose attention weights are in memory at a time."""
SettingsT = TypeVar("SettingsT", bound=EvictionSettings)


@dataclass(frozen=True)
class CacheTensors:
    """Base class of caches: dataclasses whose fields are the tensors of a state."""

    @classmethod
    def of(cls, state: State) -> Self | None:
        """Return the cache of a state, or None if nothing was read."""
        return cls(**state.tensors) if state.tensors else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: tensor for name, tensor in parts.items() if tensor is not None}


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
            *layers, next_position_B, mask_BP, holds_bos=True, positions_LBHP=positions_LBHP
        )

    def select(self, rows_N: Tensor) -> EvictedCache:
        """Select rows by index, in this order. A single row is expanded without a copy."""

        def pick(tensor: Tensor, dim: int) -> Tensor:
            if tensor.shape[dim] > 1:
                return tensor.index_select(dim, rows_N)
            return tensor.expand(*tensor.shape[:dim], len(rows_N), *tensor.shape[dim + 1 :])

        return EvictedCache(
            **{name: pick(part, int(name != "next")) for name, part in self.tensors().items()}
        )

    def compact(self) -> EvictedCache:
        """Move the padding of each row to the front, so that its slots are contiguous."""
        valid_BS = self.valid
        if bool((valid_BS[:, 1:] >= valid_BS[:, :-1]).all()):
            return self
        return self.take(valid_BS.long().argsort(dim=1, stable=True)[None, :, None])

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
        parts = {name: _gather_slots(part, chosen_LBHP) for name, part in parts.items()}
        parts["index"] = parts["index"].masked_fill(slots_LBHP < 0, -1)
        return EvictedCache(**parts, next=next_B.expand(parts["keys"].shape[1]))


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


READ_LESS_HINT = "Use --task-set documents=N to read less, or a --model with more positions."
MOVE_UP_HINT = "Use --set positions=cache --set chunk=256, and a budget in tokens."


def prefix_with_room(
    lm: LM, kept: EvictedCache | None, mask_BT: Tensor, rotary: Rotary | None
) -> Prefix | None:
    """Return the kept cache as a prefix.

    Raises:
        UserError: the model has too few positions for the text after it.
    """
    start = None if kept is None else kept.prefix(rotary)
    hint = MOVE_UP_HINT if get_capabilities(lm).rotary else READ_LESS_HINT
    check_fits(lm, start, mask_BT.sum(1), hint)
    return start


@torch.no_grad()
def extend_cache(
    lm: LM,
    kept: EvictedCache | None,
    ids_BT: Tensor,
    mask_BT: Tensor,
    rotary: Rotary | None,
    watcher: AttentionObserver | None = None,
) -> EvictedCache:
    """Read a text after the kept cache, without an eviction. Scores are dropped.

    Args:
        kept: cache of the text so far. If None, the text starts with BOS, if the model has one.
        mask_BT: bool, False for padding, which is in front.
        rotary: if given, keys are stored without rotation.
    """
    start = prefix_with_room(lm, kept, mask_BT, rotary)
    with observe_attention(watcher):
        whole = extend_prefix(lm, start, ids_BT, mask_BT)
    return append_text(kept, whole, mask_BT, rotary)


def append_text(
    kept: EvictedCache | None, whole: Prefix, mask_BT: Tensor, rotary: Rotary | None
) -> EvictedCache:
    """Append new text to the kept cache.

    Args:
        whole: prefix whose last slots are the new text.
        mask_BT: bool, False for padding of the new text.
    """
    tokens = mask_BT.shape[1]
    # layers may be on several devices
    new_text = whole.map_layers(lambda layer: layer[:, :, -tokens:].to(mask_BT.device))
    keys, values = torch.stack(new_text.keys_LBHPD), torch.stack(new_text.values_LBHPD)
    offset_BT = mask_BT.long().cumsum(1) - 1
    if rotary is not None:
        first_slot_B1 = 0 if kept is None else kept.valid.sum(1, keepdim=True)
        keys = rotary.rotate(keys, (first_slot_B1 + offset_BT).clamp(min=0), inverse=True)
    new_B = mask_BT.sum(1)
    read_B = new_B if kept is None else kept.next + new_B
    index_BT = ((read_B - new_B)[:, None] + offset_BT).masked_fill(~mask_BT, -1).int()
    new = EvictedCache(keys, values, index_BT[None, :, None], read_B)
    return new if kept is None else concat_caches(kept, new)


def concat_caches(one: EvictedCache, other: EvictedCache) -> EvictedCache:
    """Concatenate the slots of two caches. `next` comes from `other`, the later text."""
    keys = torch.cat([one.keys, other.keys], 3)
    values = torch.cat([one.values, other.values], 3)
    index = other.index.expand(one.index.shape[0], -1, one.index.shape[2], -1)
    return EvictedCache(keys, values, torch.cat([one.index, index], 3), other.next)


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
        )


class EvictingMethod(Method[SettingsT]):
    """Base class for evicting methods. State: kept keys and values, positions, tokens read."""

    required_capabilities: tuple[str, ...] = ("hooks", "gaps", "shape")
    granularity: Granularity = "segment"
    cache_class: ClassVar[type[Any]] = EvictedCache
    """Class of the state's tensors: `EvictedCache` or `RaggedCache`."""
    reserved_tokens = 0
    """Tokens of the budget for prompt and answer, if a method evicts while decoding."""
    rotary: Rotary | None
    chunk: int | None
    """Maximum tokens between evictions."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        moves_keys = settings.positions == "cache" or (
            settings.positions == "auto" and get_capabilities(lm).rotary is not None
        )
        self.rotary = get_rotary(lm) if moves_keys else None
        self.chunk = settings.chunk
        # a budget that is a share of the context grows with it; a budget in tokens does not
        self.growth = (
            "linear" if settings.kept_tokens(2**20) > settings.kept_tokens(2**19) else "constant"
        )

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Value that `positions="auto"` was resolved to."""
        if self.settings.positions != "auto":
            return {}
        return {"positions": "cache" if self.rotary else "original"}

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read the chunks of each row as one text, in parts of at most `chunk` tokens."""
        kept = self.cache_class.of(state)
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        texts = [row if kept is not None else [*self.lm.start_ids, *row] for row in rows]
        parts_by_row = [
            [text[part.start : part.stop] for part in split_evenly(len(text), self.chunk)]
            for text in texts
        ]
        for part in zip_longest(*parts_by_row, fillvalue=[]):
            ids_BT, mask_BT = pad(part, self.lm.pad_id, "left")
            kept = self._read(kept, ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))
        tokens_read = [
            before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        return State(
            state.rows, {} if kept is None else kept.tensors(), {"tokens_read": tokens_read}
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # base class
        """Return the kept cache as a prefix."""
        kept = self.cache_class.of(state)
        return Patch(prefix=None if kept is None else kept.prefix(self.rotary))

    def evicts_nothing(self, tokens: int) -> bool:
        """Return True if the budget covers the context, including BOS or the opening of a chat."""
        whole = tokens + len(self.lm.start_ids)
        return self.settings.kept_tokens(whole) >= whole + self.reserved_tokens

    @abstractmethod
    def _read(self, kept: Any, ids_BT: Tensor, mask_BT: Tensor) -> Any:
        """Read tokens (padding in front) after the kept cache, evict, and return the new cache."""


def read_with_observer(
    lm: LM,
    kept: EvictedCache | None,
    ids_BT: Tensor,
    mask_BT: Tensor,
    counted_BT: Tensor,
    rotary: Rotary | None,
) -> EvictedCache:
    """Read a text without an eviction; scores are the attention [L, B, N, S] of counted tokens."""
    sums = ColumnSums(lm.layers, 0 if kept is None else kept.index.shape[-1], counted_BT)
    whole = extend_cache(lm, kept, ids_BT, mask_BT, rotary, sums)
    return replace(whole, scores=sums.total())


class ColumnSums:
    """Attention observer that adds up `column_sums` over the forward passes of one text.

    Args:
        prefix_slots: slots of the kept cache, in front of the text.
        counted_BT: bool, True for tokens whose attention counts.
    """

    def __init__(self, layers: int, prefix_slots: int, counted_BT: Tensor) -> None:
        self._prefix_slots = prefix_slots
        self._counted_BT = counted_BT
        self._sums: list[Tensor | None] = [None] * layers

    def __call__(self, call: AttentionCall) -> None:
        """Add the sums of one forward pass of one layer."""
        tokens, slots = call.query.shape[2], call.key.shape[2]
        # tokens of the text that earlier forward passes have read
        tokens_before = slots - tokens - self._prefix_slots
        sums_BNS = column_sums(call, self._counted_BT[:, tokens_before : tokens_before + tokens])
        before = self._sums[call.layer]
        if before is not None:
            sums_BNS[..., : before.shape[-1]] += before
        self._sums[call.layer] = sums_BNS

    def total(self) -> Tensor:
        """Return the sums of all layers, float32 [L, B, N, S]."""
        known = [sums for sums in self._sums if sums is not None]
        assert len(known) == len(self._sums), "a layer was not observed"
        return torch.stack([sums.to(self._counted_BT.device) for sums in known])


def column_sums(
    call: AttentionCall, counted_BT: Tensor, block: int = MAX_QUERIES_PER_BLOCK
) -> Tensor:
    """Sum the attention that every slot receives from the counted queries, float32 [B, N, S].

    Here a query is an attention query: one token of the text. `block` of them are processed at a
    time, which affects only memory.
    """
    counted_BT = counted_BT.to(call.key.device)
    query_BHGTD = group_heads(call.query, call.key.shape[1], 1)
    sums_BHGS = query_BHGTD.new_zeros(
        (*query_BHGTD.shape[:3], call.key.shape[2]), dtype=torch.float32
    )
    counted_columns = counted_BT.any(0).nonzero().flatten().tolist()
    for begin in (
        range(counted_columns[0], counted_columns[-1] + 1, block) if counted_columns else ()
    ):
        part = slice(begin, min(begin + block, counted_columns[-1] + 1))
        scores = query_BHGTD[:, :, :, part].flatten(2, 3) @ call.key.transpose(-1, -2)
        scores = scores.unflatten(2, (-1, part.stop - begin)).float() * call.scaling  # type: ignore[no-untyped-call]
        hidden_BH1TS = ~visible_slots(call, part)[:, :, None]
        weights = scores.masked_fill_(hidden_BH1TS, torch.finfo(torch.float32).min).softmax(-1)
        sums_BHGS += torch.einsum("bhgts,bt->bhgs", weights, counted_BT[:, part].float())
    return sums_BHGS.flatten(1, 2)


def visible_slots(call: AttentionCall, part: slice) -> Tensor:
    """Return the mask of slots that these queries see, bool [B or 1, 1 or H, T, S]."""
    if call.mask is not None:
        return call.mask[:, :, part]
    tokens, slots = call.query.shape[2], call.key.shape[2]
    query_T1 = torch.arange(slots - tokens, slots, device=call.key.device)[part, None]
    return (torch.arange(slots, device=call.key.device) <= query_T1)[None, None]


def group_heads(scores: Tensor, heads: int, dim: int = 0) -> Tensor:
    """Split query heads into key/value heads and groups: [..., N, ...] to [..., H, G, ...]."""
    return scores.unflatten(dim, (heads, -1))  # type: ignore[no-untyped-call]


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
