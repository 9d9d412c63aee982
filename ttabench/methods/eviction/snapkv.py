"""SnapKV: keep the slots with the most attention from the end of the context; and random slots.

Li et al., arXiv 2404.14469 (section 4, listing 1; released code: FasterDecoding/SnapKV).
Shape letters: L layers · B rows · N query heads · H key/value heads · S slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from ttabench.core.types import Query
from ttabench.lm.attention import observe_attention
from ttabench.lm.forward.tokens import pad, prompt_ids, window_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.eviction import (
    RANDOM_SLOTS,
    SNAPKV,
    RandomSlotsSettings,
    SnapKVSettings,
    evicting,
)
from ttabench.methods.eviction.evicting import EvictedCache, EvictingMethod


class SnapKV(EvictingMethod[SnapKVSettings]):
    """Cache of the context, compressed by the attention of its last tokens."""

    spec = SNAPKV

    def __init__(self, lm: LM, settings: SnapKVSettings) -> None:
        super().__init__(lm, settings)
        if settings.query_aware:
            self.query_aware, self.growth = True, "linear"

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        if self.settings.query_aware:
            return evicting.extend_cache(self.lm, kept, ids_BT, mask_BT, self.rotary).compact()
        read_B = mask_BT.sum(1) + (0 if kept is None else kept.next)
        budget_B, window_B = evicting.amounts_by_row(self.settings.amounts, read_B)
        window_BT = evicting.newest_slots(mask_BT, window_B)
        whole = evicting.read_with_observer(
            self.lm, kept, ids_BT, mask_BT, window_BT, self.rotary
        ).compact()
        assert whole.scores is not None, "no attention scores"
        scores = slot_scores(whole.scores, whole, window_B, self.settings)
        return replace(whole, scores=None).take(evicting.kept_slots(scores, budget_B))

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the kept cache as a prefix, selected for each query if `query_aware`."""
        kept = EvictedCache.of(state)
        if kept is None or not self.settings.query_aware:
            return super().patch(state, queries)
        return Patch(prefix=self._select_for_queries(kept, queries).prefix(self.rotary))

    @torch.no_grad()
    def _select_for_queries(self, kept: EvictedCache, queries: Sequence[Query]) -> EvictedCache:
        """Read each query after the full cache, and return the cache selected for it."""
        # all tokens between context and answer; EOS if there are none, as in generation
        read = [
            [
                *window_ids(self.lm, query, is_continuation=True),
                *prompt_ids(self.lm, query, is_continuation=True),
            ]
            for query in queries
        ]
        padded = pad([ids or [self.lm.eos_id] for ids in read], self.lm.pad_id, "left")
        ids_BT, mask_BT = (part.to(self.lm.device) for part in padded)
        start = evicting.prefix_with_room(self.lm, kept, mask_BT, self.rotary)
        budget_B, window_B = evicting.amounts_by_row(self.settings.amounts, kept.next)
        slots = kept.index.shape[-1]
        sums = evicting.ColumnSums(self.lm.layers, slots, evicting.newest_slots(mask_BT, window_B))
        with observe_attention(sums):
            window = Window(self.lm, start, len(queries), retain=False)
            window.feed(ids_BT, None if bool(mask_BT.all()) else mask_BT)
        context_window_B = (window_B - mask_BT.sum(1)).clamp(min=0)
        scores = slot_scores(sums.total()[..., :slots], kept, context_window_B, self.settings)
        return kept.take(evicting.kept_slots(scores, budget_B))


def slot_scores(
    sums_LBNS: Tensor, whole: EvictedCache, window_B: Tensor, settings: SnapKVSettings
) -> Tensor:
    """Compute scores [L, B, H, S] for the selection: +inf for the window, -inf for padding."""
    valid_BS = whole.valid
    window_BS = evicting.newest_slots(valid_BS, window_B)
    past = sums_LBNS.masked_fill((window_BS | ~valid_BS)[:, None], 0.0)
    pool = max_pool1d if settings.pool == "max" else avg_pool1d
    flat = pool(
        past.flatten(0, -2).unsqueeze(1), settings.kernel, stride=1, padding=settings.kernel // 2
    )
    scores = evicting.group_heads(flat.view_as(past), whole.keys.shape[2], 2).mean(3)
    scores = scores.masked_fill(window_BS[:, None], math.inf)
    return scores.masked_fill(~valid_BS[:, None], -math.inf)


class RandomSlots(EvictingMethod[RandomSlotsSettings]):
    """Random slots of the context's cache."""

    spec = RANDOM_SLOTS

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        whole = evicting.extend_cache(self.lm, kept, ids_BT, mask_BT, self.rotary)
        places_LBHS = whole.index.long()
        scores = random_scores(places_LBHS, self.lm.layers, whole.keys.shape[2], self.settings.seed)
        scores = scores.masked_fill(places_LBHS == 0, math.inf)
        scores = scores.masked_fill(places_LBHS < 0, -math.inf)
        (budget_B,) = evicting.amounts_by_row(
            lambda read: [self.settings.kept_tokens(read)], whole.next
        )
        return whole.take(evicting.kept_slots(scores, budget_B))


def random_scores(places_LBHS: Tensor, layers: int, heads: int, seed: int) -> Tensor:
    """Hash seed, text position, layer and head to numbers in [0, 1), float32 [L, B, H, S]."""
    number_LH = torch.arange(layers * heads, device=places_LBHS.device).view(layers, 1, heads, 1)
    mixed = _hash32(
        _hash32(_hash32(number_LH + 1) ^ (seed & 0xFFFFFFFF)) ^ _hash32(places_LBHS + 1)
    )
    return (mixed >> 8).float() / 2**24  # 24 bits: the precision of float32


def _hash32(numbers: Tensor) -> Tensor:
    """Hash to 32 bits, where each input bit changes about half of them; int64 avoids overflow."""
    numbers = ((numbers ^ (numbers >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return numbers ^ (numbers >> 15)
