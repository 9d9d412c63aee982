"""Query-only test-time training: the cache stays, gradient steps on the context change what looks into it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import at_least
from ttabench.cost import INTEGER, SINGLE, Cost, Factors, Shape, Workload, closed_book, in_window
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class QueryTrainingSettings(LoraShape):
    """Settings of `qttt`; the learning rate is chosen on validation data."""

    rank: int = 16
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj",)
    """Last parts of the names of the linear maps that make queries. Others are not refused, though keys and values that
    they would change stay as they were read."""
    steps: int = 32
    """Gradient steps on what is read between two questions."""
    span: int = 128
    """Tokens of a step: a stretch of the text, behind the keys and values of all before it."""
    lr: float = 1e-4
    """Learning rate of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, steps=self.steps, lr=self.lr)
        at_least(2, span=self.span)
        if not self.targets:
            raise ValueError("targets names no linear map")


def cost(settings: QueryTrainingSettings, shape: Shape, work: Workload) -> Cost:
    """Full context, then gradient steps of factors of the queries on spans that stand, on average, behind half of it
    (arXiv 2512.13898, section 4); the pieces arrive together. A base whose queries come with keys and values is counted
    with factors of that map, and refused when it is run."""
    if not work.pieces:
        return closed_book(shape, work)
    maps = [linear for linear in shape.linears if linear.name in settings.targets]
    factors = Factors(shape, settings.rank, maps or list(shape.attention_linears[:1]))
    slots, span = shape.starts + work.tokens, min(settings.span, work.tokens)
    behind = shape.starts + (work.tokens - span) // 2
    steps = settings.steps * factors.step(span - 1, span - 1, behind) if span > 1 else 0
    size = SINGLE * factors.size + shape.cache_bytes(slots, work.value_bytes) + INTEGER * (work.tokens + 2)
    floats = factors.size + shape.slot_floats * slots
    whole = in_window(shape, work, slots, state_floats=floats, state_bytes=size)
    asked = whole.ask_flops + factors.forward(work.asked)
    return replace(whole, adapt_flops=whole.adapt_flops + steps, ask_flops=asked)


QTTT = MethodSpec(
    name="qttt",
    summary="full context, and gradient steps on the queries into it",
    where="ttabench.methods.qttt.method:QueryTraining",
    Settings=QueryTrainingSettings,
    growth="linear",
    cost=cost,
    checked=QueryTrainingSettings(rank=2, steps=2, span=8, lr=1e-2),
    paper="2512.13898",
)

METHODS = (QTTT,)
