"""StreamAdapter: chunks of a key/value cache, summarised into weight deltas."""

from __future__ import annotations

from dataclasses import replace

from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.lowrank import targeted
from ttabench.cost.shape import Shape
from ttabench.methods.spec import MethodSpec
from ttabench.methods.streamadapter.settings import PRESETS, RECIPES, StreamAdapterSettings


class _Mapper:
    """The networks that map a cache to deltas, in all layers: numbers, and operations."""

    def __init__(self, shape: Shape, settings: StreamAdapterSettings) -> None:
        self.shape, self.settings = shape, settings
        maps, layers, queries = targeted(settings.targets, shape), shape.layers, settings.queries
        heads, size, wide = shape.kv_heads, shape.head_dim, shape.kv_heads * settings.down
        self.state = layers * len(maps) * queries * wide
        """Numbers of the state, L M R E."""
        projected = (1 if settings.share_heads else heads) * size * settings.down
        own = heads * queries * size + projected + wide + 1
        ends = sum(wide * linear.inputs + queries * linear.outputs for linear in maps)
        self.parameters = layers * (len(maps) * own + ends)
        """Queries, down-projection and gate of every map, and the two matrices that make its delta of the state."""
        self.attended = 4 * heads * size * queries * layers * len(maps)
        """Operations of attention to one slot."""
        self.written = 2 * layers * queries * wide * sum(linear.inputs for linear in maps)
        """Operations of making the deltas of the state."""
        merged = 2 * layers * queries * sum(linear.size for linear in maps)
        self.patched = self.written + (merged if settings.merge else 0)
        """Operations of what queries share: the deltas, added to the weights where they are merged."""
        self.token = 2 * layers * queries * sum(linear.ends for linear in maps)
        """Operations of a token under deltas that are not merged."""
        self.asked = 0 if settings.merge else self.token

    def mapped(self, chunks: int, slots: int) -> int:
        """Operations of taking up so many chunks of so many slots each: attention, projection, gate, and a sum over
        chunks, which is a product where there are several."""
        return chunks * (self.attended * slots + (2 * self.shape.head_dim + (4 if chunks > 1 else 2)) * self.state)


def cost(settings: StreamAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """Without `window` everything is read by the base model and mapped; with it, what leaves the window is."""
    mapper = _Mapper(shape, settings)
    if not work.pieces:
        own = closed_book(shape, work)
    elif settings.window is None:
        own = _whole(mapper, work)
    else:
        own = _windows(mapper, settings.window, work)
    return replace(own, added_parameters=mapper.parameters)


def _whole(mapper: _Mapper, work: Workload) -> Cost:
    """Everything is one text, which stays with `keep_cache`."""
    shape, chunk, keeps = mapper.shape, mapper.settings.chunk, mapper.settings.keep_cache
    read, bare = shape.starts + work.tokens, closed_book(shape, work)
    chunks, left = divmod(work.tokens, chunk)
    flops = shape.forward(read) + mapper.mapped(chunks, chunk) + mapper.patched
    if left:
        flops += mapper.mapped(1, chunk - 1 if shape.dense else left)
    held = chunk - 1 + (read if keeps else 0)  # room for a chunk that is not full
    return replace(
        bare,
        state_floats=mapper.state + shape.slot_floats * held,
        state_bytes=SINGLE * mapper.state + shape.cache_bytes(held, work.value_bytes) + INTEGER * (1 + keeps),
        adapt_slots=chunk - 1 + read,
        ask_slots=held + bare.ask_slots,
        adapt_flops=flops,
        ask_flops=bare.ask_flops + mapper.asked * (shape.starts + work.asked),
        positions=max(shape.starts + (work.tokens if keeps else max(work.runs)), bare.positions),
    )


def _windows(mapper: _Mapper, window: int, work: Workload) -> Cost:
    """The oldest `stride` tokens leave a full window and are read by the weights in force; what stays is read anew."""
    shape, stride, chunk = mapper.shape, mapper.settings.stride, mapper.settings.chunk
    evictions = max(0, 1 + (work.tokens - (window - 1)) // stride)
    leaving, kept = shape.starts + stride, work.tokens - evictions * stride
    slots = shape.starts + kept if kept else 0
    evicting = mapper.written + shape.forward(leaving) + mapper.token * leaving + mapper.mapped(stride // chunk, chunk)
    most, asked = max(slots, leaving) if evictions else slots, work.asked + (0 if kept else shape.starts)
    return Cost(
        parameters=shape.parameters,
        state_floats=mapper.state,
        state_bytes=SINGLE * mapper.state + INTEGER * (window - 2 + 1),
        adapt_slots=most,
        ask_slots=slots + asked,
        adapt_flops=evictions * evicting + mapper.patched + shape.forward(slots) + mapper.asked * slots,
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + mapper.asked * asked,
        positions=max(most, slots + asked),
    )


STREAMADAPTER = MethodSpec(
    name="streamadapter",
    summary="weight deltas mapped from keys and values",
    where="ttabench.methods.streamadapter.method:StreamAdapter",
    Settings=StreamAdapterSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="constant",
    trainable=True,
    cost=cost,
    checked=StreamAdapterSettings(queries=4, down=4, chunk=4, window=16, stride=8),
    paper="2411.09289",
)
METHODS = (STREAMADAPTER,)
