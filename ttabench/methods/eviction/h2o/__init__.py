"""H2O: settings, spec and cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.types import Json
from ttabench.cost import Cost, Shape, Workload
from ttabench.methods.eviction.spec import (
    DEPRECATED_JOIN,
    EvictionSettings,
    attention_sum_flops,
    eviction_cost,
    eviction_spec,
)
from ttabench.methods.parts.settings import Amount, check_amount, in_tokens


@dataclass(frozen=True, kw_only=True)
class H2OSettings(EvictionSettings):
    """Settings of `h2o`; the defaults are the released code's.

    It also evicts after the prompt, then one slot per answer token. Shares refer to context and
    prompt together.
    """

    heavy: Amount = 0.1
    """Heavy hitters kept in every layer and head, or their share of the tokens read."""
    recent: Amount = 0.1
    """Last tokens kept, or their share of the tokens read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("heavy", self.heavy)
        check_amount("recent", self.recent)

    def amounts(self, read: int) -> tuple[int, int]:
        """Return the numbers of heavy hitters and recent tokens kept of `read` tokens."""
        return in_tokens(self.heavy, read), in_tokens(self.recent, read)

    def kept_tokens(self, read: int) -> int:
        """Return the number of heavy hitters and recent tokens."""
        return sum(self.amounts(read))


def score_flops(_: H2OSettings, shape: Shape, part: int, kept: int, _read: int) -> int:
    """Compute the operations of the second attention of all tokens."""
    return attention_sum_flops(shape, part, kept)


def h2o_cost(settings: H2OSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of H2O (arXiv 2306.14048, algorithm 1).

    It is full attention twice, with a score for every slot. Evictions follow the prompt as a whole
    and every generated token.
    """
    cost = eviction_cost(settings, shape, work, score_flops, stores_scores=True)
    if not work.chunk_tokens:
        return cost
    kept = cost.ask_slots - work.query_positions
    prompt = work.prompt_tokens
    step_shape = replace(shape, counts_masked_pairs=False)
    limit = settings.kept_tokens(shape.bos_tokens + work.tokens + prompt)
    first = min(kept + prompt, limit)
    generated = work.new_tokens - 1
    growing = min(limit - first, generated)
    full = first + growing
    flops = shape.forward_flops(prompt, kept) + attention_sum_flops(shape, prompt, kept)
    flops += shape.head_flops(work.new_tokens)
    flops += step_shape.forward_flops(growing, first) + attention_sum_flops(
        step_shape, growing, first
    )
    step_flops = step_shape.forward_flops(1, full) + attention_sum_flops(step_shape, 1, full)
    flops += (generated - growing) * step_flops
    peak = max(kept + prompt, min(full + 1, kept + work.query_positions))
    return replace(cost, ask_slots=peak, ask_flops=flops)


def as_halves(amount: Amount) -> dict[str, Json]:
    """Return the settings that spend a budget on heavy hitters and recent tokens equally."""
    if isinstance(amount, float):
        return {"heavy": amount / 2, "recent": amount / 2}
    if amount < 2:
        raise ValueError(f"at least 2 tokens are needed (heavy and recent), got {amount}")
    return {"heavy": amount // 2, "recent": amount - amount // 2}


H2O = eviction_spec(
    "h2o",
    "slots with the most attention so far, and the last tokens",
    import_path="ttabench.methods.eviction.h2o.method:H2O",
    Settings=H2OSettings,
    presets={
        "streamadapter": H2OSettings(),
        "stream": H2OSettings(heavy=256, recent=256, chunk=512, positions="auto"),
    },
    cost=h2o_cost,
    keep=as_halves,
    test_settings=H2OSettings(heavy=8, recent=8),
    deprecated_settings={"evict_decode": True, **DEPRECATED_JOIN},
    paper="2306.14048",
)
