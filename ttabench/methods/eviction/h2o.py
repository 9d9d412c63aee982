"""H2O: keep the heavy hitters, the keys that have received the most attention so far, and the most recent ones.

Zhang et al., arXiv 2306.14048 (algorithm 1; released code: FMInference/H2O, its variant that really drops).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.types import Query
from ttabench.lm.forward.capabilities import Rotary
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods import eviction
from ttabench.methods.eviction import H2OSettings, evicting
from ttabench.methods.eviction.evicting import ColumnSums, EvictedCache, EvictingMethod


class H2O(EvictingMethod[H2OSettings]):
    """The cache of the context, compressed by how much attention its slots have received."""

    spec = eviction.H2O
    reserved_tokens = 256

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        whole = accumulate_scores(
            evicting.read_with_observer(self.lm, kept, ids_BT, mask_BT, mask_BT, self.rotary), kept
        )
        return evict_slots(whole, *evicting.amounts_by_row(self.settings.amounts, whole.next))

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """The kept cache as a prefix, which goes on evicting; nothing where nothing was read."""
        patch, kept = super().patch(state, queries), EvictedCache.of(state)
        if kept is None or patch.prefix is None:
            return patch
        return replace(
            patch,
            prefix=replace(patch.prefix, eviction=HeavyHitters(kept, self.rotary, self.settings)),
        )


def accumulate_scores(whole: EvictedCache, before: EvictedCache | None) -> EvictedCache:
    """Everything kept and read with scores by key/value head: the new sums, on top of what slots from before had."""
    assert whole.scores is not None, "attention was watched"
    scores = evicting.group_heads(whole.scores, whole.keys.shape[2], 2).sum(3)
    if before is not None and before.scores is not None:
        scores = scores + pad(before.scores, (0, scores.shape[-1] - before.scores.shape[-1]))
    return replace(whole, scores=scores).compact()


def evict_slots(whole: EvictedCache, heavy_B: Tensor, recent_B: Tensor) -> EvictedCache:
    """The last `recent_B` slots and the `heavy_B` best others of every row, layer and head, with their scores."""
    assert whole.scores is not None, "heavy hitters are known by their scores"
    valid_BS = whole.valid
    stays_BS = evicting.newest_slots(valid_BS, recent_B)[:, None]
    scores = whole.scores.masked_fill(stays_BS, math.inf).masked_fill(~valid_BS[:, None], -math.inf)
    return whole.take(evicting.kept_slots(scores, heavy_B + recent_B))


@dataclass(frozen=True)
class HeavyHitters:
    """The rule while prompt and answer are read: an `Eviction`."""

    kept: EvictedCache
    """Tensors of the prefix, with scores."""
    rotary: Rotary | None
    settings: H2OSettings
    budget: tuple[Tensor, ...] | None = None
    """Heavy and recent slots, int64 [B] each: those of the first eviction, after the prompt, hold for the answer."""

    def step(self, mask_BT: Tensor) -> EvictionStep:
        """Watch the next tokens being read."""
        return EvictionStep(self, mask_BT)

    def select(self, rows_N: Tensor) -> HeavyHitters:
        """That of these rows."""
        budget = self.budget and tuple(amount_B.index_select(0, rows_N) for amount_B in self.budget)
        return replace(self, kept=self.kept.select(rows_N), budget=budget)


class EvictionStep(ColumnSums):
    """Some tokens read under the rule."""

    def __init__(self, rule: HeavyHitters, mask_BT: Tensor) -> None:
        super().__init__(rule.kept.keys.shape[0], rule.kept.index.shape[-1], mask_BT)
        self.rule, self.mask_BT = rule, mask_BT

    def remaining_prefix(self, whole: Prefix, *, evict: bool) -> Prefix:
        """Heavy hitters and recent slots; with all scores brought up to date."""
        rule = self.rule
        kept = evicting.append_text(rule.kept, whole, self.mask_BT, rule.rotary)
        kept, budget = accumulate_scores(replace(kept, scores=self.total()), rule.kept), rule.budget
        if evict:
            budget = budget or evicting.amounts_by_row(rule.settings.amounts, kept.next)
            kept = evict_slots(kept, *budget)
        return replace(kept.prefix(rule.rotary), eviction=replace(rule, kept=kept, budget=budget))
