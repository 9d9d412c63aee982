"""In-Place TTT: each chunk updates the down projection of some feed-forward networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    closed_book_cost,
    window_cost,
)
from ttabench.methods.spec import CHUNK_WRITER_RECIPE, MethodSpec


@dataclass(frozen=True, kw_only=True)
class InPlaceSettings:
    """Settings of `in_place_ttt`."""

    chunk: int = 4096
    """Tokens read before each weight update; the last chunk before a query may be shorter."""
    rate: float = 3.0
    """Factor of the update of a chunk; choose it on validation data."""
    every: int = 6
    """Layers 0, `every`, twice `every` and so on are updated."""
    kernel: int = 5
    """Tokens in the target of a token: the token itself, and as many before it as after it."""
    made_of: Literal["hidden", "embedding"] = "hidden"
    """Source of the targets: the input of the feed-forward network, or that of the first layer."""
    clip: float | None = None
    """Maximum Frobenius norm of the update of a chunk. None: no limit."""
    cache: bool = True
    """True to keep the KV cache of all tokens read. False: only the weight updates remain."""

    def __post_init__(self) -> None:
        require_at_least(1, chunk=self.chunk, every=self.every, kernel=self.kernel)
        if not self.kernel % 2:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


def cost(settings: InPlaceSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of full context or separate chunks, of the updates, and of the updated maps.

    Assumes that all chunks arrive together.
    """
    s, down, layers = settings, shape.mlp_linears[-1], -(-shape.layers // settings.every)
    added_parameters = layers * down.outputs * (s.kernel + down.outputs)
    if not work.chunk_tokens:
        return replace(closed_book_cost(shape, work), added_parameters=added_parameters)
    slots = shape.bos_tokens + work.tokens
    last_chunk = work.tokens - max(0, work.tokens - 1) // s.chunk * s.chunk
    chunks = [s.chunk] * ((work.tokens - last_chunk) // s.chunk) + [last_chunk]
    change_flops = 2 * (added_parameters + layers * down.size) * work.tokens
    delta_flops = 2 * layers * (down.size + down.outputs**2)  # per token after the first update
    change_bytes = FLOAT32_BYTES * layers * down.size
    if not s.cache:
        read_flops = sum(shape.forward_flops(shape.bos_tokens + chunk) for chunk in chunks)
        read_flops += delta_flops * (work.tokens - chunks[0] + shape.bos_tokens * (len(chunks) - 1))
        base, max_slots = closed_book_cost(shape, work), shape.bos_tokens + max(chunks)
        return replace(
            base,
            added_parameters=added_parameters,
            state_floats=layers * down.size,
            state_bytes=change_bytes,
            adapt_slots=max_slots,
            adapt_flops=read_flops + change_flops,
            ask_flops=base.ask_flops + delta_flops * (shape.bos_tokens + work.query_positions),
            positions=max(max_slots, base.positions),
        )
    full_cost = window_cost(
        shape,
        work,
        slots,
        added_parameters=added_parameters,
        state_floats=layers * down.size + shape.slot_floats * slots,
        state_bytes=change_bytes + work.kv_bytes(shape, slots) + INT64_BYTES,
    )
    read_flops = full_cost.adapt_flops + delta_flops * (work.tokens - chunks[0]) + change_flops
    return replace(
        full_cost,
        adapt_flops=read_flops,
        ask_flops=full_cost.ask_flops + delta_flops * work.query_positions,
    )


IN_PLACE_TTT = MethodSpec(
    name="in_place_ttt",
    summary="down projections updated by each chunk from its tokens",
    import_path="ttabench.methods.in_place_ttt.method:InPlaceTraining",
    Settings=InPlaceSettings,
    presets={
        "nano": InPlaceSettings(chunk=32, rate=1e-3, every=1, cache=False),
        "smollm2-135m": InPlaceSettings(chunk=128, rate=1e-4),
    },
    recipes={"": replace(CHUNK_WRITER_RECIPE, lr=3e-3)},
    growth="linear",
    trainable=True,
    cost=cost,
    test_settings=InPlaceSettings(chunk=16, rate=0.1, every=1),
    paper="2604.06169",
)

METHODS = (IN_PLACE_TTT,)
