"""KeyDiff: keep the slots with keys unlike the mean key.

Park et al., arXiv 2504.15364 (section 3; also kvpress: `KeyDiffPress`).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ttabench.methods.eviction.keydiff import KEYDIFF
from ttabench.methods.eviction.scoring import ScoringMethod
from ttabench.methods.eviction.spec import BudgetSettings


class KeyDiff(ScoringMethod[BudgetSettings]):
    """Cache of the context, compressed by the similarity of its keys."""

    spec = KEYDIFF

    def score(self, keys: Tensor) -> Tensor:
        """Return minus the cosine similarity to the mean of the normalised keys."""
        mean = normalize(keys, dim=-1).mean(-2, keepdim=True)
        return -cosine_similarity(keys, mean, dim=-1)
