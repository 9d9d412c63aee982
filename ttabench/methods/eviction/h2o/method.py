"""H2O: keep heavy hitters (keys with the most attention so far) and recent tokens.

Zhang et al., arXiv 2306.14048 (algorithm 1; released code: FMInference/H2O, the variant that drops
slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.types import Query
from ttabench.lm.forward.capabilities import Rotary
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.eviction import h2o
from ttabench.methods.eviction.cache import EvictedCache, amounts_by_row, append_text
from ttabench.methods.eviction.h2o import H2OSettings
from ttabench.methods.eviction.observers import ColumnSums, group_heads
from ttabench.methods.eviction.scoring import ScoringMethod


class H2O(ScoringMethod[H2OSettings]):
    """Cache of the context, compressed by the attention that its slots received."""

    spec = h2o.H2O
    reserved_tokens = 256

    def always_kept(self, read: int) -> tuple[int, int]:
        """Return no first slots, and the recent ones."""
        return 0, self.settings.amounts(read)[1]

    @staticmethod
    def score(attention: Tensor, earlier_scores: Tensor) -> Tensor:
        """Sum over the query heads of each key/value head, and add the scores so far."""
        heads = earlier_scores.shape[-2]
        return group_heads(attention, heads, -2).sum(-2) + earlier_scores

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the kept cache as a prefix that evicts during prompt and answer."""
        patch, kept = super().patch(state, queries), EvictedCache.of(state)
        if kept is None or patch.prefix is None:
            return patch
        policy = HeavyHitters(kept, self.rotary, self.settings)
        return replace(patch, prefix=replace(patch.prefix, eviction=policy))


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
        kept = append_text(rule.kept, whole, self.mask_BT, rule.rotary)
        assert rule.kept.scores is not None, "the cache has scores"
        earlier_scores = pad(rule.kept.scores, (0, self.mask_BT.shape[1]))
        kept = replace(kept, scores=H2O.score(self.total(), earlier_scores)).compact()
        budget = rule.budget
        if evict:
            assert kept.scores is not None, "the cache has scores"
            budget = budget or amounts_by_row(rule.settings.amounts, kept.next)
            heavy_B, recent_B = budget
            kept = kept.evict(kept.scores, heavy_B + recent_B, last_B=recent_B)
        return replace(kept.prefix(rule.rotary), eviction=replace(rule, kept=kept, budget=budget))
