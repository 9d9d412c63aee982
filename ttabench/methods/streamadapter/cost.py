"""What StreamAdapter costs: keys and values of a context, mapped chunk by chunk to a state, and that to weight deltas.

    cost(settings, shape, work).state_floats     L M R E, and the chunk that is not full; no more at any length

Muhtar et al., arXiv 2411.09289, equations 4 to 8, as `chunk_state` computes them: queries
attend to a chunk before its values are projected down. One projection for all heads of a map gives the parameters of
Table 5.

Letters: L layers · M linear maps of a layer · H key/value heads · D head size · R queries of a map · V channels a head
    is projected to · E = H V.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.lowrank import targeted
from ttabench.cost.shape import Linear, Shape
from ttabench.methods.streamadapter.settings import StreamAdapterSettings


@dataclass(frozen=True)
class _Mapper:
    """The networks that map a cache to deltas, in all layers."""

    shape: Shape
    settings: StreamAdapterSettings
    maps: list[Linear]

    @property
    def wide(self) -> int:
        """E."""
        return int(self.shape.kv_heads * self.settings.down)

    @property
    def floats(self) -> int:
        """Numbers of the state."""
        return int(self.shape.layers * len(self.maps) * self.settings.queries * self.wide)

    @property
    def parameters(self) -> int:
        """Queries, down-projection and gate of every map, and the two matrices that make its delta of the state."""
        queries, down, heads = self.settings.queries, self.settings.down, self.shape.kv_heads
        projected = (1 if self.settings.share_heads else heads) * self.shape.head_dim * down
        own = heads * queries * self.shape.head_dim + projected + self.wide + 1
        ends = sum(self.wide * linear.inputs + queries * linear.outputs for linear in self.maps)
        return int(self.shape.layers * (len(self.maps) * own + ends))

    def mapped(self, chunks: int, slots: int) -> int:
        """Operations of taking up so many chunks of so many slots each: attention, projection, gate, and a sum over
        chunks, which is a product where there are several."""
        size = self.shape.head_dim
        attention = 4 * self.shape.kv_heads * size * slots * self.settings.queries
        attention *= self.shape.layers * len(self.maps)
        return int(chunks * (attention + (2 * size + (4 if chunks > 1 else 2)) * self.floats))

    @property
    def written(self) -> int:
        """Operations of making the deltas of the state."""
        inputs = sum(linear.inputs for linear in self.maps)
        return int(2 * self.shape.layers * self.settings.queries * self.wide * inputs)

    @property
    def merged(self) -> int:
        """Operations of adding them to the weights."""
        return int(2 * self.shape.layers * self.settings.queries * sum(linear.size for linear in self.maps))

    @property
    def token(self) -> int:
        """Operations of a token under deltas that are not merged."""
        return int(2 * self.shape.layers * self.settings.queries * sum(linear.ends for linear in self.maps))


def cost(settings: StreamAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """Without `window` everything is read by the base model and mapped; with it, what leaves the window is."""
    mapper = _Mapper(shape, settings, targeted(settings.targets, shape))
    if not work.pieces:
        own = closed_book(shape, work)
    elif settings.window is None:
        own = _whole(mapper, work)
    else:
        own = _windows(mapper, work)
    return replace(own, added_parameters=mapper.parameters)


def _patched(mapper: _Mapper) -> tuple[int, int]:
    """Operations of the deltas that queries share, and of a token under them."""
    merge = mapper.settings.merge
    return mapper.written + (mapper.merged if merge else 0), 0 if merge else mapper.token


def _whole(mapper: _Mapper, work: Workload) -> Cost:
    """Everything is one text, which stays with `keep_cache`."""
    shape, chunk, keeps = mapper.shape, mapper.settings.chunk, mapper.settings.keep_cache
    read = shape.starts + work.tokens
    chunks, left = divmod(work.tokens, chunk)
    patched, token = _patched(mapper)
    flops = shape.forward(read) + mapper.mapped(chunks, chunk) + patched
    if left:
        flops += mapper.mapped(1, chunk - 1 if shape.dense else left)
    held = chunk - 1 + (read if keeps else 0)  # room for a chunk that is not full
    bare = closed_book(shape, work)
    return replace(
        bare,
        state_floats=mapper.floats + shape.slot_floats * held,
        state_bytes=SINGLE * mapper.floats + shape.cache_bytes(held, work.value_bytes) + INTEGER * (1 + keeps),
        adapt_slots=chunk - 1 + read,
        ask_slots=held + bare.ask_slots,
        adapt_flops=flops,
        ask_flops=bare.ask_flops + token * (shape.starts + work.asked),
        positions=max(shape.starts + (work.tokens if keeps else max(work.runs)), bare.positions),
    )


def _windows(mapper: _Mapper, work: Workload) -> Cost:
    """The oldest `stride` tokens leave a full window and are read by the weights in force; what stays is read anew."""
    shape, settings = mapper.shape, mapper.settings
    window, stride = settings.window, settings.stride
    assert window is not None, "read through a window"
    evictions = max(0, 1 + (work.tokens - (window - 1)) // stride)
    leaving, kept = shape.starts + stride, work.tokens - evictions * stride
    slots = shape.starts + kept if kept else 0
    evicting = mapper.written + shape.forward(leaving) + mapper.token * leaving
    evicting += mapper.mapped(stride // settings.chunk, settings.chunk)
    patched, token = _patched(mapper)
    most = max(slots, leaving) if evictions else slots
    asked = work.asked + (0 if kept else shape.starts)
    return Cost(
        parameters=shape.parameters,
        state_floats=mapper.floats,
        state_bytes=SINGLE * mapper.floats + INTEGER * (window - 2 + 1),
        adapt_slots=most,
        ask_slots=slots + asked,
        adapt_flops=evictions * evicting + patched + shape.forward(slots) + token * slots,
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + token * asked,
        positions=max(most, slots + asked),
    )
