"""What full context costs: its keys and values, or its newest tokens.

cost(settings, shape, work).state_bytes      2 layers x kv_heads x head_dim numbers a token, and one position
"""

from __future__ import annotations

from ttabench.cost.load import INTEGER, Cost, Workload, answer, closed_book, read_again
from ttabench.cost.shape import Shape
from ttabench.methods.icl.settings import InContextSettings


def cost(settings: InContextSettings, shape: Shape, work: Workload) -> Cost:
    """Full context, read once into a cache (decoder forward: arXiv 2204.02311, appendix B)."""
    if not work.pieces:
        return closed_book(shape, work)
    tokens, limit = work.tokens, settings.max_tokens
    if settings.truncate != "error" and shape.positions is not None:
        limit = settings.limit(shape.positions)
    tokens = tokens if limit is None else min(tokens, limit)
    slots = shape.starts + tokens
    floats, size = shape.slot_floats * slots, shape.cache_bytes(slots, work.value_bytes) + INTEGER
    if settings.truncate == "left":
        return read_again(shape, work, tokens)
    return Cost(
        parameters=shape.parameters,
        state_floats=floats,
        state_bytes=size,
        adapt_slots=slots,
        ask_slots=slots + work.asked,
        adapt_flops=shape.forward(slots),
        ask_flops=answer(shape, work, slots, begun=True),
        positions=slots + work.asked,
    )


def most(settings: InContextSettings, positions: int) -> int | None:
    """Tokens of context beyond which `truncate=error` refuses."""
    return settings.limit(positions) if settings.truncate == "error" else None
