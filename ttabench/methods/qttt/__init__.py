"""Query-only test-time training: gradient steps adapt the query projections only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    LowRankFactors,
    Shape,
    Workload,
    closed_book_cost,
    window_cost,
)
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class QueryTrainingSettings(LoraShape):
    """Settings of `qttt`.

    Choose the learning rate on validation data.
    """

    rank: int = 16
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj",)
    """Last parts of the names of the query projections. Other maps are accepted, but the stored
    keys and values are not updated for them."""
    steps: int = 32
    """Gradient steps on the text read between two queries."""
    span: int = 128
    """Tokens of a step: a span of the text, after the keys and values of all text before it."""
    lr: float = 1e-4
    """Learning rate of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, steps=self.steps, lr=self.lr)
        require_at_least(2, span=self.span)
        if not self.targets:
            raise ValueError("targets must name at least one linear map")


def cost(settings: QueryTrainingSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of full context and of gradient steps on spans (arXiv 2512.13898, section 4).

    On average, a span follows half of the text. Assumes that all chunks arrive together. If the
    base model has a fused map for queries, keys and values, factors of that map are counted;
    running it raises an error.
    """
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    maps = [linear for linear in shape.linears if linear.name in settings.targets]
    factors = LowRankFactors(shape, settings.rank, maps or list(shape.attention_linears[:1]))
    slots, span = shape.bos_tokens + work.tokens, min(settings.span, work.tokens)
    slots_before = shape.bos_tokens + (work.tokens - span) // 2
    steps = settings.steps * factors.step_flops(span - 1, span - 1, slots_before) if span > 1 else 0
    state_bytes = (
        FLOAT32_BYTES * factors.size + work.kv_bytes(shape, slots) + INT64_BYTES * (work.tokens + 2)
    )
    state_floats = factors.size + shape.slot_floats * slots
    base = window_cost(shape, work, slots, state_floats=state_floats, state_bytes=state_bytes)
    ask_flops = base.ask_flops + factors.forward_flops(work.query_positions)
    return replace(base, adapt_flops=base.adapt_flops + steps, ask_flops=ask_flops)


QTTT = MethodSpec(
    name="qttt",
    summary="full context, and gradient steps on the query projections",
    import_path="ttabench.methods.qttt.method:QueryTraining",
    Settings=QueryTrainingSettings,
    growth="linear",
    cost=cost,
    test_settings=QueryTrainingSettings(rank=2, steps=2, span=8, lr=1e-2),
    paper="2512.13898",
)

METHODS = (QTTT,)
