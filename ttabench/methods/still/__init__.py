"""Amortised compaction: a Perceiver per layer replaces the keys and values of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import require_at_least
from ttabench.cost import INT64_BYTES, Cost, Shape, Workload, closed_book_cost, window_cost
from ttabench.methods.spec import CHUNK_WRITER_RECIPE, MethodSpec


@dataclass(frozen=True, kw_only=True)
class StillSettings:
    """Settings of `still`."""

    slots: int = 8
    """Keys and values written for each chunk, in every layer and head."""
    width: int = 128
    """Channels of a latent."""
    heads: int = 4
    """Attention heads of the latents."""
    seed: int = 0
    """Random seed of the initial weights."""

    def __post_init__(self) -> None:
        require_at_least(1, slots=self.slots, heads=self.heads)
        if self.width < 1 or self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads={self.heads}, got {self.width}")


def cost(settings: StillSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of full context, of one network per layer, and of a cache of `slots` per chunk.

    Assumes that all chunks arrive together.
    """
    s, heads, w = settings, shape.kv_heads, settings.width
    entries = 2 * heads * shape.head_dim
    token_size = entries * w + 3 * w * w  # input; attention keys and values; mixing
    # attention queries and output, feed-forward, mixing, changes
    latent_size = 6 * w * w + w * heads * w + w * entries
    # norms, latents, biases
    small_size = 2 * entries + w * (s.slots + 1) + 4 * w + 4 * w + 3 * w + heads * w + entries + 1
    added = shape.layers * (token_size + latent_size + small_size)
    if not work.chunk_tokens:
        return replace(closed_book_cost(shape, work), added_parameters=added)
    slots = shape.bos_tokens + s.slots * len(work.chunk_tokens)
    tokens = shape.bos_tokens + work.tokens
    attended_flops = 2 * w + heads * w + entries  # per latent and token: attention and mixing
    networks = (
        2
        * shape.layers
        * (
            work.tokens * (token_size + s.slots * attended_flops)
            + len(work.chunk_tokens) * s.slots * latent_size
        )
    )
    return window_cost(
        shape,
        work,
        slots,
        added_parameters=added,
        state_floats=shape.slot_floats * slots,
        state_bytes=work.kv_bytes(shape, slots) + INT64_BYTES,
        adapt_slots=tokens,
        adapt_flops=shape.forward_flops(tokens) + networks,
        positions=tokens + work.query_positions,
    )


STILL = MethodSpec(
    name="still",
    summary="a few keys and values per chunk, written by a small Perceiver per layer",
    import_path="ttabench.methods.still.method:Still",
    Settings=StillSettings,
    presets={"nano": StillSettings(slots=4), "smollm2-135m": StillSettings(slots=4, width=256)},
    recipes={"": replace(CHUNK_WRITER_RECIPE, beta2=0.98)},
    growth="linear",
    trainable=True,
    cost=cost,
    test_settings=StillSettings(slots=2, width=16, heads=2),
    paper="2606.07878",
)

METHODS = (STILL,)
