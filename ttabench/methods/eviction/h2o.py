"""H2O: keep heavy hitters (keys with the most attention so far) and recent tokens.

Zhang et al., arXiv 2306.14048 (algorithm 1; released code: FMInference/H2O, the variant that drops
slots).
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
    """Cache of the context, compressed by the attention that its slots received."""

    spec = eviction.H2O
    reserved_tokens = 256

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        whole = accumulate_scores(
            evicting.read_with_observer(self.lm, kept, ids_BT, mask_BT, mask_BT, self.rotary), kept
        )
        return evict_slots(whole, *evicting.amounts_by_row(self.settings.amounts, whole.next))

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the kept cache as a prefix that evicts during prompt and answer."""
        patch, kept = super().patch(state, queries), EvictedCache.of(state)
        if kept is None or patch.prefix is None:
            return patch
        policy = HeavyHitters(kept, self.rotary, self.settings)
        return replace(patch, prefix=replace(patch.prefix, eviction=policy))


def accumulate_scores(whole: EvictedCache, before: EvictedCache | None) -> EvictedCache:
    """Sum new scores over the query heads of a key/value head, and add the scores from before."""
    assert whole.scores is not None, "no attention scores"
    scores = evicting.group_heads(whole.scores, whole.keys.shape[2], 2).sum(3)
    if before is not None and before.scores is not None:
        scores = scores + pad(before.scores, (0, scores.shape[-1] - before.scores.shape[-1]))
    return replace(whole, scores=scores).compact()


def evict_slots(whole: EvictedCache, heavy_B: Tensor, recent_B: Tensor) -> EvictedCache:
    """Keep the last `recent_B` slots and the `heavy_B` best others of every row, layer and head."""
    assert whole.scores is not None, "no attention scores"
    valid_BS = whole.valid
    stays_BS = evicting.newest_slots(valid_BS, recent_B)[:, None]
    scores = whole.scores.masked_fill(stays_BS, math.inf).masked_fill(~valid_BS[:, None], -math.inf)
    return whole.take(evicting.kept_slots(scores, heavy_B + recent_B))


@dataclass(frozen=True)
class HeavyHitters:
    """Eviction policy for prompt and answer: an `Eviction`."""

    kept: EvictedCache
    """Cache of the prefix, with scores."""
    rotary: Rotary | None
    settings: H2OSettings
    budget: tuple[Tensor, ...] | None = None
    """Heavy and recent slots, int64 [B] each, fixed by the first eviction, after the prompt."""

    def step(self, mask_BT: Tensor) -> EvictionStep:
        """Return an observer for the next tokens."""
        return EvictionStep(self, mask_BT)

    def select(self, rows_N: Tensor) -> HeavyHitters:
        """Select rows of the policy."""
        budget = self.budget
        if budget is not None:
            budget = tuple(amount_B.index_select(0, rows_N) for amount_B in budget)
        return replace(self, kept=self.kept.select(rows_N), budget=budget)


class EvictionStep(ColumnSums):
    """Observer of tokens that are read under the policy."""

    def __init__(self, rule: HeavyHitters, mask_BT: Tensor) -> None:
        super().__init__(rule.kept.keys.shape[0], rule.kept.index.shape[-1], mask_BT)
        self.rule, self.mask_BT = rule, mask_BT

    def remaining_prefix(self, whole: Prefix, *, evict: bool) -> Prefix:
        """Return the prefix with updated scores, reduced to heavy hitters and recent slots."""
        rule = self.rule
        kept = evicting.append_text(rule.kept, whole, self.mask_BT, rule.rotary)
        kept = accumulate_scores(replace(kept, scores=self.total()), rule.kept)
        budget = rule.budget
        if evict:
            budget = budget or evicting.amounts_by_row(rule.settings.amounts, kept.next)
            kept = evict_slots(kept, *budget)
        return replace(kept.prefix(rule.rotary), eviction=replace(rule, kept=kept, budget=budget))
