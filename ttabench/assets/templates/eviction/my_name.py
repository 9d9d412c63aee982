"""MyName: keeps the slots of the KV cache with the smallest norms of keys.

Check it:  ttabench check ./my_name.py
Run it:    ttabench eval --method ./my_name.py --task streamingqa --keep 0.2
"""

from __future__ import annotations

from torch import Tensor

from ttabench.extend import BudgetSettings, ScoringMethod, eviction_spec


class MyName(ScoringMethod[BudgetSettings]):
    """A budget of slots in every layer and head."""

    spec = eviction_spec("my_name", "slots with the smallest keys")

    def score(self, keys: Tensor) -> Tensor:
        """Score the slots of one sequence: [layers, heads, slots]. The highest scores are kept.

        Other parameters: values, positions, attention, queries and earlier_scores.
        """
        return -keys.norm(dim=-1)
