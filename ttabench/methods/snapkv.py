"""SnapKV: keep the keys and values that the end of the context looks at.

    context of 1,000 tokens, budget 256, window 32:   the last 32 tokens stay; the attention they pay to the 968 before
    them, smoothed over 7 neighbours, picks the 224 that stay with them, for every key/value head of every layer

Li et al., arXiv 2404.14469 (section 4, listing 1; released code: FasterDecoding/SnapKV). The window is the tail of the
context, not of the question: one cache serves all queries. Generated tokens are appended and never evicted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ttabench.errors import UserError
from ttabench.layers.eviction import Amount, Group, Pool, check_amount, grouped, kept_slots, newest, pooled, tokens_of
from ttabench.layers.kept import Kept
from ttabench.lm import LM
from ttabench.methods.evicting import EvictingMethod, ReadingSettings, compacted, observed
from ttabench.types import Growth


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(ReadingSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench configuration."""

    budget: Amount = 1024
    """Tokens kept in every layer, the window included; or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context (or their share of it), which observe and always stay. A last piece that is shorter
    observes with all its tokens."""
    kernel: int = 7
    """Slots whose scores are pooled around each one; odd."""
    pool: Pool = "max"
    """How they are pooled; averages count zeros beyond the ends."""
    group: Group = "mean"
    """How the query heads of one key/value head are heard. per_query (as released: one cache a query head) needs a
    model without grouped queries, where all ways are alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("budget", self.budget)
        check_amount("window", self.window)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if type(self.window) is type(self.budget) and self.window >= self.budget:
            raise ValueError(f"window must be smaller than the budget {self.budget}, got {self.window}")


class SnapKV(EvictingMethod[SnapKVSettings]):
    """The cache of the context, compressed by what its last tokens attend to."""

    name = "snapkv"
    summary = "keep the keys and values that the end of the context attends to"
    paper = "2404.14469"
    Settings = SnapKVSettings
    presets: ClassVar[Mapping[str, Any]] = {
        "nano": SnapKVSettings(budget=256),
        "stream": SnapKVSettings(budget=512, chunk=512, positions="auto"),
        "streamadapter": SnapKVSettings(window=0.1, budget=0.2),
        "class-default": SnapKVSettings(window=64, budget=320, kernel=5, pool="avg"),
        "init-default": SnapKVSettings(budget=2048, kernel=5, pool="avg"),
        "longbench-1024": SnapKVSettings(budget=1024),
        "longbench-2048": SnapKVSettings(budget=2048),
        "longbench-4096": SnapKVSettings(budget=4096),
    }
    growth: Growth = "constant"

    def __init__(self, lm: LM, settings: SnapKVSettings) -> None:
        super().__init__(lm, settings)
        self.growth = "linear" if isinstance(settings.budget, float) else "constant"
        if settings.group == "per_query" and lm.kv_heads < lm.heads:
            what = f"group=per_query keeps a cache for each of the {lm.heads} query heads of {lm.name},"
            raise UserError(f"{what} whose attention takes {lm.kv_heads}.", "Use --set group=mean, max or sum.")

    def _read(self, kept: Kept | None, ids_BT: Tensor, mask_BT: Tensor) -> Kept:
        read_B = mask_BT.sum(1) if kept is None else mask_BT.sum(1) + kept.next
        budget_B = tokens_of(self.settings.budget, read_B)
        window_B = torch.minimum(tokens_of(self.settings.window, read_B), budget_B)
        whole, sums = observed(self.lm, kept, ids_BT, mask_BT, newest(mask_BT, window_B), self.rotary)
        whole, sums = compacted(whole, sums)
        return whole.take(kept_slots(ranked(sums, whole, window_B, self.settings), budget_B))


def ranked(sums_LBNS: Tensor, whole: Kept, window_B: Tensor, settings: SnapKVSettings) -> Tensor:
    """Scores [L, B, H, S] by which slots stay: the window first, padding never."""
    valid_BS = whole.valid
    window_BS = newest(valid_BS, window_B)
    past = sums_LBNS.masked_fill((window_BS | ~valid_BS)[:, None], 0.0)
    scores = grouped(pooled(past, settings.kernel, settings.pool), whole.keys.shape[2], settings.group)
    return scores.masked_fill(window_BS[:, None], math.inf).masked_fill(~valid_BS[:, None], -math.inf)
