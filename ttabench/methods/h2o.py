"""H2O: keep the heavy hitters, the keys that have received the most attention so far, and the most recent ones.

    score of a slot += attention it receives from every token read;  keep the `recent` last and the top `heavy` others

Zhang et al., arXiv 2306.14048 (algorithm 1; released code: FMInference/H2O, its variant that really drops). Scores
travel with their slots: what was evicted is lost, what stays goes on counting. Sums are raw, over all query heads of a
group. Eviction happens while reading; tokens of prompt and answer are appended and evict nothing, unlike in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import pad

from ttabench.layers.eviction import Amount, check_amount, grouped, kept_slots, newest, tokens_of
from ttabench.layers.kept import Kept
from ttabench.lm import LM
from ttabench.methods.evicting import EvictingMethod, ReadingSettings, compacted, observed
from ttabench.types import Growth


@dataclass(frozen=True, kw_only=True)
class H2OSettings(ReadingSettings):
    """Settings of `h2o`; the defaults are the released code's."""

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head; or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept; or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)


class H2O(EvictingMethod[H2OSettings]):
    """The cache of the context, compressed by how much attention its slots have received."""

    name = "h2o"
    summary = "keep the keys and values that received the most attention, and the latest"
    paper = "2306.14048"
    Settings = H2OSettings
    presets: ClassVar[Mapping[str, Any]] = {
        "streamadapter": H2OSettings(),
        "stream": H2OSettings(heavy=256, recent=256, chunk=512, positions="auto"),
    }
    growth: Growth = "linear"

    def __init__(self, lm: LM, settings: H2OSettings) -> None:
        super().__init__(lm, settings)
        shares = isinstance(settings.heavy, float) or isinstance(settings.recent, float)
        self.growth = "linear" if shares else "constant"

    def _read(self, kept: Kept | None, ids_BT: Tensor, mask_BT: Tensor) -> Kept:
        whole, sums = observed(self.lm, kept, ids_BT, mask_BT, mask_BT, self.rotary)
        scores = grouped(sums, self.lm.kv_heads, "sum")
        if kept is not None and kept.scores is not None:
            scores = scores + pad(kept.scores, (0, ids_BT.shape[1]))
        whole, scores = compacted(whole, scores)
        heavy_B, recent_B = (tokens_of(each, whole.next) for each in (self.settings.heavy, self.settings.recent))
        return evicted(replace(whole, scores=scores), heavy_B, recent_B)


def evicted(whole: Kept, heavy_B: Tensor, recent_B: Tensor) -> Kept:
    """The last `recent_B` slots and the `heavy_B` best others of every row, layer and head, with their scores."""
    assert whole.scores is not None, "heavy hitters are known by their scores"
    valid_BS = whole.valid
    stays_BS = newest(valid_BS, recent_B)[:, None]
    scores = whole.scores.masked_fill(stays_BS, math.inf).masked_fill(~valid_BS[:, None], -math.inf)
    return whole.take(kept_slots(scores, heavy_B + recent_B))
