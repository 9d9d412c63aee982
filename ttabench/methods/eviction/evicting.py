"""What methods that throw keys and values away share: caches of what stayed, how a text is read on top of one, and how
the best slots are found.

Shape letters: L layers · B rows · N query heads · H key/value heads · G = N / H · T queries · S slots · P slots kept ·
    D head size.
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
from ttabench.methods.base import BaseMethod, Granularity
from ttabench.methods.eviction import EvictionSettings, split_evenly
from ttabench.methods.parts.kept import extend_prefix

MAX_QUERIES_PER_BLOCK = 256
"""Queries whose attention weights are alive at a time."""
SettingsT = TypeVar("SettingsT", bound=EvictionSettings)


@dataclass(frozen=True)
class CacheTensors:
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
class EvictedCache(CacheTensors):
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
        keys = (
            self.keys if rotary is None else rotary.rotate(self.keys, self.slots(), inverse=False)
        )
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

        return EvictedCache(
            **{name: pick(part, int(name != "next")) for name, part in self.tensors().items()}
        )

    def compact(self) -> EvictedCache:
        """The same with the padding of each row in front, so that neighbours in the cache are neighbours in the row."""
        valid_BS = self.valid
        if bool((valid_BS[:, 1:] >= valid_BS[:, :-1]).all()):
            return self
        return self.take(valid_BS.long().argsort(dim=1, stable=True)[None, :, None])

    def take(self, slots_LBHP: Tensor) -> EvictedCache:
        """Only these slots, -1 for padding; L and H may be 1, for the same slots everywhere. One row gives to many."""
        held = self.index.shape[-1]
        if slots_LBHP.shape[-1] == held and bool(
            (slots_LBHP == torch.arange(held, device=slots_LBHP.device)).all()
        ):
            return self
        parts, chosen_LBHP = self.tensors(), slots_LBHP.clamp(min=0)
        next_B = parts.pop("next")
        parts = {name: _gather_slots(part, chosen_LBHP) for name, part in parts.items()}
        parts["index"] = parts["index"].masked_fill(slots_LBHP < 0, -1)
        return EvictedCache(**parts, next=next_B.expand(parts["keys"].shape[1]))


def _gather_slots(source_LBHS: Tensor, slots_LBHP: Tensor) -> Tensor:
    """Slots of a tensor [L, B, H, S] or [L, B, H, S, D]; sizes of 1 in front are shared, on either side."""
    *own, held = source_LBHS.shape[:4]
    front = [max(sizes) for sizes in zip(own, slots_LBHP.shape[:3], strict=True)]
    first_LBH1 = torch.arange(math.prod(own), device=slots_LBHP.device).view(*own, 1) * held
    rows_N = (first_LBH1 + slots_LBHP).expand(*front, -1).flatten()
    table = source_LBHS.reshape(-1, *source_LBHS.shape[4:])
    return table.index_select(0, rows_N).view(*front, -1, *source_LBHS.shape[4:])


READ_LESS_HINT = "Read less (--task-set documents=N) or give a --model of more positions."
MOVE_UP_HINT = (
    "Read in pieces that move up: --set positions=cache --set chunk=256, and a budget in tokens."
)


def prefix_with_room(
    lm: LM, kept: EvictedCache | None, mask_BT: Tensor, rotary: Rotary | None
) -> Prefix | None:
    """The kept cache as a prefix, once it is known that the tokens of a text have positions left behind it."""
    start = None if kept is None else kept.prefix(rotary)
    check_fits(
        lm, start, mask_BT.sum(1), MOVE_UP_HINT if get_capabilities(lm).rotary else READ_LESS_HINT
    )
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
    """Read a text on top of what was kept; nothing is thrown away yet, and carried scores are dropped. `kept`: what
    was read before; None at the start of a text, whose first token is then BOS where the model has one; `mask_BT`:
    bool, false where a row is padded, in front; `rotary`: store keys unrotated; None leaves them as the model
    rotated them."""
    start = prefix_with_room(lm, kept, mask_BT, rotary)
    with observe_attention(watcher):
        whole = extend_prefix(lm, start, ids_BT, mask_BT)
    return append_text(kept, whole, mask_BT, rotary)


def append_text(
    kept: EvictedCache | None, whole: Prefix, mask_BT: Tensor, rotary: Rotary | None
) -> EvictedCache:
    """The kept cache, and behind it the text at the end of a prefix, read on top of it."""
    tokens = mask_BT.shape[1]
    text = whole.map_layers(
        lambda layer: layer[:, :, -tokens:].to(mask_BT.device)
    )  # wherever the layers are
    keys, values = torch.stack(text.keys_LBHPD), torch.stack(text.values_LBHPD)
    steps_BT = mask_BT.long().cumsum(1) - 1
    if rotary is not None:
        first_B1 = 0 if kept is None else kept.valid.sum(1, keepdim=True)
        keys = rotary.rotate(keys, (first_B1 + steps_BT).clamp(min=0), inverse=True)
    read_B = mask_BT.sum(1) if kept is None else kept.next + mask_BT.sum(1)
    index_BT = (
        (read_B[:, None] - mask_BT.sum(1, keepdim=True) + steps_BT).masked_fill(~mask_BT, -1).int()
    )
    new = EvictedCache(keys, values, index_BT[None, :, None], read_B)
    return new if kept is None else concat_caches(kept, new)


def concat_caches(one: EvictedCache, other: EvictedCache) -> EvictedCache:
    """One in front of the other; what was read is what the later one says."""
    keys, values = (
        torch.cat(both, 3) for both in ((one.keys, other.keys), (one.values, other.values))
    )
    index = other.index.expand(one.index.shape[0], -1, one.index.shape[2], -1)
    return EvictedCache(keys, values, torch.cat([one.index, index], 3), other.next)


@dataclass(frozen=True)
class RaggedCache(CacheTensors):
    """Kept keys and values of one reader: by layer, then by head, in the order of the text."""

    keys: Tensor
    """[S, D]"""
    values: Tensor
    """[S, D]"""
    index: Tensor
    """int32 [S]: place in the text."""
    counts: Tensor
    """int32 [L, 1, H]: slots of every layer and head."""
    next: Tensor
    """int64 [1]: tokens read, BOS included."""
    scores: Tensor | None = None
    """float32 [S]: by which a slot stays or goes when more is read; None where nothing more is read."""
    bias: Tensor | None = None
    """float32 [S]: what is added to its attention scores; None for nothing."""

    def slot_mask(self) -> Tensor:
        """bool [L, 1, H, P]: which of the padded slots are there; padding stands behind."""
        return (
            torch.arange(int(self.counts.max()), device=self.counts.device) < self.counts[..., None]
        )

    def padded(self, flat_S: Tensor, fill: float) -> Tensor:
        """[L, 1, H, P] or [L, 1, H, P, D] of a tensor of slots; padding holds `fill`."""
        held_LBHP = self.slot_mask()
        padded = flat_S.new_full((*held_LBHP.shape, *flat_S.shape[1:]), fill)
        padded[held_LBHP] = flat_S
        return padded

    def prefix(self, rotary: None = None) -> Prefix:  # noqa: ARG002  # keys stay where they stood
        """The slots, hidden where they are padding, with the position of the text that follows."""
        held_LBHP = self.slot_mask()
        places = torch.where(held_LBHP, self.padded(self.index, 0).long(), self.next - 1)
        bias_LBHP = self.padded(
            self.keys.new_zeros(len(self.keys)) if self.bias is None else self.bias, -math.inf
        )
        return Prefix(
            tuple(self.padded(self.keys, 0).unbind(0)),
            tuple(self.padded(self.values, 0).unbind(0)),
            self.next,
            holds_bos=True,
            bias_LBHP=None
            if self.bias is None and bool(held_LBHP.all())
            else tuple(bias_LBHP.unbind(0)),
            positions_LBHP=tuple(places.unbind(0)),
        )


class EvictingMethod(BaseMethod[SettingsT]):
    """State: the kept keys and values, their places in the text, and how many tokens were read."""

    required_capabilities: tuple[str, ...] = ("hooks", "gaps", "shape")
    granularity: Granularity = "segment"
    cache_class: ClassVar[type[Any]] = EvictedCache
    """What a state holds: `EvictedCache` or `RaggedCache`."""
    reserved_tokens = 0
    """Tokens of prompt and answer that must fit beside a context for it to be called whole."""
    rotary: Rotary | None
    chunk: int | None
    """Tokens after which it evicts at the latest."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        moving = settings.positions == "cache" or (
            settings.positions == "auto" and get_capabilities(lm).rotary is not None
        )
        self.rotary = get_rotary(lm) if moving else None
        self.chunk = settings.chunk
        self.growth = (
            "linear" if settings.kept_tokens(2**20) > settings.kept_tokens(2**19) else "constant"
        )

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Where kept keys stand."""
        return (
            {}
            if self.settings.positions != "auto"
            else {"positions": "cache" if self.rotary else "original"}
        )

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read pieces as one text."""
        kept = self.cache_class.of(state)
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        texts = [row if kept is not None else [*self.lm.start_ids, *row] for row in rows]
        cut = [
            [text[part.start : part.stop] for part in split_evenly(len(text), self.chunk)]
            for text in texts
        ]
        for part in zip_longest(*cut, fillvalue=[]):
            ids_BT, mask_BT = pad(part, self.lm.pad_id, "left")
            kept = self._read(kept, ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))
        read = [
            before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        return State(state.rows, {} if kept is None else kept.tensors(), {"tokens_read": read})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The kept cache as a prefix."""
        kept = self.cache_class.of(state)
        return Patch(prefix=None if kept is None else kept.prefix(self.rotary))

    def evicts_nothing(self, tokens: int) -> bool:
        """Whether as many tokens stay as there are; BOS, or what opens a chat, is kept like text."""
        whole = tokens + len(self.lm.start_ids)
        return self.settings.kept_tokens(whole) >= whole + self.reserved_tokens

    @abstractmethod
    def _read(self, kept: Any, ids_BT: Tensor, mask_BT: Tensor) -> Any:
        """The cache that stays after reading these tokens (padded in front) on top of the one before."""


def read_with_observer(
    lm: LM,
    kept: EvictedCache | None,
    ids_BT: Tensor,
    mask_BT: Tensor,
    counted_BT: Tensor,
    rotary: Rotary | None,
) -> EvictedCache:
    """Everything kept and read, its scores the attention [L, B, N, S] each slot got from the tokens that count."""
    sums = ColumnSums(lm.layers, 0 if kept is None else kept.index.shape[-1], counted_BT)
    whole = extend_cache(lm, kept, ids_BT, mask_BT, rotary, sums)
    return replace(whole, scores=sums.total())


class ColumnSums:
    """A watcher that adds up `column_sums` over the forwards of one reading. `held`: slots in front of the text that is
    read."""

    def __init__(self, layers: int, held: int, counted_BT: Tensor) -> None:
        self._held, self._counted_BT = held, counted_BT
        self._sums: list[Tensor | None] = [None] * layers

    def __call__(self, call: AttentionCall) -> None:
        """Add the sums of one forward of one layer."""
        tokens, slots = call.query.shape[2], call.key.shape[2]
        begin = slots - tokens - self._held
        sums_BNS, before = (
            column_sums(call, self._counted_BT[:, begin : begin + tokens]),
            self._sums[call.layer],
        )
        if before is not None:
            sums_BNS[..., : before.shape[-1]] += before
        self._sums[call.layer] = sums_BNS

    def total(self) -> Tensor:
        """float32 [L, B, N, S]"""
        known = [sums for sums in self._sums if sums is not None]
        assert len(known) == len(self._sums), "sums of layers that were never read"
        return torch.stack([sums.to(self._counted_BT.device) for sums in known])


def column_sums(
    call: AttentionCall, counted_BT: Tensor, block: int = MAX_QUERIES_PER_BLOCK
) -> Tensor:
    """Attention every slot receives from the counted queries, float32 [B, N, S]: sums of softmax columns. `block`:
    queries at a time; changes memory, not results."""
    counted_BT = counted_BT.to(call.key.device)
    query_BHGTD = group_heads(call.query, call.key.shape[1], 1)
    sums_BHGS = query_BHGTD.new_zeros(
        (*query_BHGTD.shape[:3], call.key.shape[2]), dtype=torch.float32
    )
    columns = counted_BT.any(0).nonzero().flatten().tolist()
    for begin in range(columns[0], columns[-1] + 1, block) if columns else ():
        part = slice(begin, min(begin + block, columns[-1] + 1))
        scores = query_BHGTD[:, :, :, part].flatten(2, 3) @ call.key.transpose(
            -1, -2
        )  # of a group at once
        scores = scores.unflatten(2, (-1, part.stop - begin)).float() * call.scaling  # type: ignore[no-untyped-call]
        hidden_BH1TS = ~visible_slots(call, part)[:, :, None]
        weights = scores.masked_fill_(hidden_BH1TS, torch.finfo(torch.float32).min).softmax(-1)
        sums_BHGS += torch.einsum("bhgts,bt->bhgs", weights, counted_BT[:, part].float())
    return sums_BHGS.flatten(1, 2)


def visible_slots(call: AttentionCall, part: slice) -> Tensor:
    """bool [B or 1, 1 or H, T, S]: which slots the queries of this part see."""
    if call.mask is not None:
        return call.mask[:, :, part]
    tokens, slots = call.query.shape[2], call.key.shape[2]
    own_T1 = torch.arange(slots - tokens, slots, device=call.key.device)[part, None]
    return (torch.arange(slots, device=call.key.device) <= own_T1)[None, None]


def group_heads(scores: Tensor, heads: int, dim: int = 0) -> Tensor:
    """Query heads in this dimension as key/value heads and those that share them: [..., N, ...] as [..., H, G, ...]."""
    return scores.unflatten(dim, (heads, -1))  # type: ignore[no-untyped-call]


def amounts_by_row(amounts: Callable[[int], Sequence[int]], read_B: Tensor) -> tuple[Tensor, ...]:
    """Amounts in tokens, int64 [B] each, of rows that have read so many."""
    return read_B.new_tensor([amounts(read) for read in read_B.tolist()]).unbind(1)


def newest_slots(valid_BS: Tensor, amount_B: Tensor) -> Tensor:
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
