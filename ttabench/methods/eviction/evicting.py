"""What methods that throw keys and values away share: a text is read on top of what is left, and the best slots stay.

Shape letters: L layers · B rows · N query heads · H key/value heads · G = N / H · T queries · S slots · P slots kept ·
    D head size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Ask, Observe
from ttabench.lm.attention.interface import Call
from ttabench.lm.forward.rotary import Rotary
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.forward.ways import rotary_of, ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod, Reads
from ttabench.methods.eviction.evicted_cache import EvictedCache, extended
from ttabench.methods.eviction.settings import ReadingSettings

BLOCK = 256
"""Queries whose attention weights are alive at a time."""
SettingsT = TypeVar("SettingsT", bound=ReadingSettings)


class EvictingMethod(BaseMethod[SettingsT]):
    """State: the kept keys and values, their places in the text, and how many tokens were read."""

    needs: tuple[str, ...] = ("hooks", "gaps", "shape")
    reads: Reads = "run"
    Cache: ClassVar[type[Any]] = EvictedCache
    """What a state holds: `EvictedCache` or `RaggedCache`."""
    asked = 0
    """Tokens of prompt and answer that must fit beside a context for it to be called whole."""
    rotary: Rotary | None
    chunk: int | None
    """Tokens after which it evicts at the latest."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        moving = settings.positions == "cache" or (settings.positions == "auto" and ways_of(lm).rotary is not None)
        self.rotary = rotary_of(lm) if moving else None
        self.chunk = settings.chunk
        self.growth = "linear" if settings.kept(2**20) > settings.kept(2**19) else "constant"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read pieces as one text."""
        kept = self.Cache.of(state)
        rows = [list(chain(*row)) for row in new_ids(self.lm, state, chunks)]
        for part in self._parts(rows, [] if kept is not None else list(self.lm.start_ids)):
            ids_BT, mask_BT = pad(part, self.lm.pad_id, "left")
            kept = self._read(kept, ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))
        read = [before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)]
        return State(state.rows, {} if kept is None else kept.tensors(), {"tokens_read": read})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The kept cache as a prefix."""
        kept = self.Cache.of(state)
        return Patch(prefix=None if kept is None else kept.prefix(self.rotary))

    def evicts_nothing(self, tokens: int) -> bool:
        """Whether as many tokens stay as there are; BOS, or what opens a chat, is kept like text."""
        whole = tokens + len(self.lm.start_ids)
        return self.settings.kept(whole) >= whole + self.asked

    def _parts(self, rows: Sequence[list[int]], start: list[int]) -> Iterator[list[list[int]]]:
        """Rows cut into parts of at most `chunk` tokens, the parts of a row of like length."""
        texts = [start + row for row in rows]
        size = self.chunk or max(1, *map(len, texts))
        counts = [-(-len(text) // size) for text in texts]
        for number in range(max(counts)):
            yield [
                text[len(text) * number // count : len(text) * (number + 1) // count] if number < count else []
                for text, count in zip(texts, counts, strict=True)
            ]

    @abstractmethod
    def _read(self, kept: Any, ids_BT: Tensor, mask_BT: Tensor) -> Any:
        """The cache that stays after reading these tokens (padded in front) on top of the one before."""


def observed(
    lm: LM, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor, counted_BT: Tensor, rotary: Rotary | None
) -> EvictedCache:
    """Everything kept and read, its scores the attention [L, B, N, S] each slot got from the tokens that count."""
    sums = ColumnSums(lm.layers, 0 if kept is None else kept.index.shape[-1], counted_BT)
    whole = extended(lm, kept, ids_BT, mask_BT, rotary, sums)
    return replace(whole, scores=sums.total())


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


def column_sums(call: Call, counted_BT: Tensor, block: int = BLOCK) -> Tensor:
    """Attention every slot receives from the counted queries, float32 [B, N, S]: sums of softmax columns. `block`:
    queries at a time; changes memory, not results."""
    counted_BT = counted_BT.to(call.key.device)
    if call.weights is not None:
        return torch.einsum("bnts,bt->bns", call.weights.float(), counted_BT.float())
    query_BHGTD = grouped(call.query, call.key.shape[1], 1)
    sums_BHGS = query_BHGTD.new_zeros((*query_BHGTD.shape[:3], call.key.shape[2]), dtype=torch.float32)
    columns = counted_BT.any(0).nonzero().flatten().tolist()
    for begin in range(columns[0], columns[-1] + 1, block) if columns else ():
        part = slice(begin, min(begin + block, columns[-1] + 1))
        scores = query_BHGTD[:, :, :, part].flatten(2, 3) @ call.key.transpose(-1, -2)  # of a group at once
        scores = scores.unflatten(2, (-1, part.stop - begin)).float() * call.scaling  # type: ignore[no-untyped-call]
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


def grouped(scores: Tensor, heads: int, dim: int = 0) -> Tensor:
    """Query heads in this dimension as key/value heads and those that share them: [..., N, ...] as [..., H, G, ...]."""
    split: Tensor = scores.unflatten(dim, (heads, -1))  # type: ignore[no-untyped-call]
    return split


def by_row(amounts: Callable[[int], Sequence[int]], read_B: Tensor) -> tuple[Tensor, ...]:
    """Amounts in tokens, int64 [B] each, of rows that have read so many."""
    return read_B.new_tensor([amounts(read) for read in read_B.tolist()]).unbind(1)


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
