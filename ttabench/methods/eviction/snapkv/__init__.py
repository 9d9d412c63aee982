"""SnapKV: settings, spec and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.cost import Cost, Shape, Workload
from ttabench.methods.eviction.spec import (
    DEPRECATED_JOIN,
    UNIFORM,
    BudgetSettings,
    attention_sum_flops,
    budget_cost,
    eviction_spec,
)
from ttabench.methods.parts.settings import Amount, as_budget, check_amount, in_tokens


@dataclass(frozen=True, kw_only=True)
class SnapKVSettings(BudgetSettings):
    """Settings of `snapkv`; window, kernel and pool default to the paper's LongBench values."""

    budget: Amount = 1024
    """Tokens kept in every layer, window included, or their share of the tokens read."""
    window: Amount = 32
    """Last tokens of the context, or their share. Their attention scores the other slots, and they
    are always kept. If the last part of the text is shorter, all its tokens are used."""
    window_share: float = 1.0
    """Maximum share of the window in the budget."""
    kernel: int = 7
    """Slots per pooling window of the scores; odd."""
    pool: Literal["max", "avg"] = "max"
    """Pooling of the scores; averages include zeros beyond the ends."""
    query_aware: bool = False
    """Evict separately for each query, which is read after the context: the window ends with its
    tokens. The state is then the full cache. Budget and shares still refer to the context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("window", self.window)
        check_amount("window_share", float(self.window_share))
        if self.query_aware and self.shares != UNIFORM:
            raise ValueError(f"query_aware needs shares=uniform, got shares={self.shares}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if (
            self.window_share == 1.0
            and type(self.window) is type(self.budget)
            and self.window >= self.budget
        ):
            raise ValueError(
                f"window must be smaller than the budget {self.budget}, got {self.window}"
            )

    def amounts(self, read: int) -> tuple[int, int]:
        """Return budget and window in tokens after reading `read` tokens."""
        budget = self.kept_tokens(read)
        limit = in_tokens(float(self.window_share), budget)
        return budget, min(in_tokens(self.window, read), limit)


def score_flops(settings: SnapKVSettings, shape: Shape, part: int, kept: int, read: int) -> int:
    """Compute the operations of the second attention of the last `window` tokens."""
    window = min(part, settings.amounts(read)[1])
    return attention_sum_flops(shape, window, kept + part - window)


def cost(settings: SnapKVSettings, shape: Shape, work: Workload) -> Cost | None:
    """Compute the cost of SnapKV (arXiv 2404.14469, section 4), None if `query_aware`."""
    return None if settings.query_aware else budget_cost(settings, shape, work, score_flops)


SNAPKV = eviction_spec(
    "snapkv",
    "slots with the most attention from the end of the context",
    import_path="ttabench.methods.eviction.snapkv.method:SnapKV",
    Settings=SnapKVSettings,
    presets={
        "nano": SnapKVSettings(budget=256),
        "stream": SnapKVSettings(budget=512, chunk=512, positions="auto"),
        "streamadapter": SnapKVSettings(window=0.1, budget=0.2),
    },
    growth="constant",
    cost=cost,
    # the window takes at most half, so that its attention decides about the other half
    keep=lambda amount: {**as_budget(amount), "window_share": 0.5},
    test_settings=SnapKVSettings(budget=16, window=4),
    deprecated_settings={"group": "mean", **DEPRECATED_JOIN},
    paper="2404.14469",
)
