"""SnapKV: keep the slots with the most attention from the end of the context.

Li et al., arXiv 2404.14469 (section 4, listing 1; released code: FasterDecoding/SnapKV).
Shape letters: L layers · B rows · N query heads · H key/value heads · S slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, pad as pad_slots

from ttabench.core.types import Query
from ttabench.lm.attention import observe_attention
from ttabench.lm.forward.tokens import pad, prompt_ids, window_ids
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.eviction.cache import EvictedCache, RaggedCache, amounts_by_row, newest_slots
from ttabench.methods.eviction.evicting import extend_cache, prefix_with_room
from ttabench.methods.eviction.observers import ColumnSums, group_heads
from ttabench.methods.eviction.scoring import ScoringMethod
from ttabench.methods.eviction.snapkv import SNAPKV, SnapKVSettings


class SnapKV(ScoringMethod[SnapKVSettings]):
    """Cache of the context, compressed by the attention of its last tokens."""

    spec = SNAPKV

    def __init__(self, lm: LM, settings: SnapKVSettings) -> None:
        super().__init__(lm, settings)
        if settings.query_aware:
            self.query_aware, self.growth = True, "linear"

    def always_kept(self, read: int) -> tuple[int, int]:
        """Return no first slots, and the window."""
        return 0, self.settings.amounts(read)[1]

    def observed_tokens(self, read: int) -> int:
        """Return the length of the window."""
        return self.settings.amounts(read)[1]

    def score(self, attention: Tensor, read: int) -> Tensor:
        """Pool the attention to all slots before the window."""
        window = self.observed_tokens(read)
        past = pool_attention(attention[..., :-window], self.lm.kv_heads, self.settings)
        return pad_slots(past, (0, window))

    def _read(
        self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor
    ) -> EvictedCache | RaggedCache:
        if self.settings.query_aware:
            return extend_cache(self.lm, kept, ids_BT, mask_BT, self.rotary).compact()
        return super()._read(kept, ids_BT, mask_BT)

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
        rows = [ids or [self.lm.eos_id] for ids in read]
        ids_BT, mask_BT = pad(rows, self.lm.pad_id, "left", self.lm.device)
        start = prefix_with_room(self.lm, kept, mask_BT, self.rotary)
        budget_B, window_B = amounts_by_row(self.settings.amounts, kept.next)
        slots = kept.index.shape[-1]
        sums = ColumnSums(len(self.lm.kv_layers), slots, newest_slots(mask_BT, window_B))
        with observe_attention(sums):
            window = Window(self.lm, start, len(queries), retain=False)
            window.feed(ids_BT, None if bool(mask_BT.all()) else mask_BT)
        context_window_B = (window_B - mask_BT.sum(1)).clamp(min=0)
        is_past_BS = kept.valid & ~newest_slots(kept.valid, context_window_B)
        past = sums.total()[..., :slots].masked_fill(~is_past_BS[:, None], 0.0)
        scores = pool_attention(past, self.lm.kv_heads, self.settings)
        return kept.evict(scores, budget_B, last_B=context_window_B)


def pool_attention(past: Tensor, heads: int, settings: SnapKVSettings) -> Tensor:
    """Pool attention [..., N, S] over neighbouring slots, and average it over query heads."""
    pool = max_pool1d if settings.pool == "max" else avg_pool1d
    flat = pool(
        past.flatten(0, -2).unsqueeze(1), settings.kernel, stride=1, padding=settings.kernel // 2
    )
    return group_heads(flat.view_as(past), heads, -2).mean(-2)
