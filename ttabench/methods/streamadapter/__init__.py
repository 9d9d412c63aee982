"""StreamAdapter: chunks of a key/value cache, summarised into weight deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.bounds import at_least
from ttabench.cost.load import INTEGER, SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Shape, targeted
from ttabench.methods.recipe import Recipe
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class StreamAdapterSettings:
    """Settings of `streamadapter`; the defaults are the paper's (TinyLlama-1.1B)."""

    queries: int = 16
    """Learned queries of every linear map: the rank of its delta."""
    down: int = 32
    """Channels each key/value head's values are projected to (d')."""
    chunk: int = 128
    """Tokens of a chunk."""
    temperature: float = 16.0
    """tau: the gate is sigmoid(...) ** (1 / tau)."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the adapted linear maps; none means every one inside the layers."""
    query_std: float = 0.02
    """Standard deviation of the queries before training. Near 0 all queries of a map begin with the mean of a chunk."""
    gate_bias: float = 0.0
    """b of the gates before training. At 0 a state holds about the last 24 chunks, at -2 8 of them, at 1.2 61."""
    gate_spread: float = 0.0
    """The gates of a layer's linear maps begin evenly between `gate_bias` less and plus this: maps of longer and of
    shorter memory."""
    scale: float = 1.0
    """Factor of every delta. The paper has none; it lets one learning rate suit states of any size."""
    centred: bool = False
    """Begin training with down-projections orthogonal to the mean values of its first texts. What all texts have in
    common otherwise fills the states: on SmolLM2, those of two books begin with a cosine of 0.94, and so with 0.55."""
    share_heads: bool = True
    """One down-projection for all heads of a linear map; the paper's parameter counts come out so."""
    window: int | None = None
    """Sliding window: so many tokens stand in the window, and what leaves it goes into the weights. None: everything
    that is read goes into the weights."""
    stride: int = 512
    """Tokens that leave a full window together; whole chunks."""
    keep_cache: bool = False
    """Without a window: pieces that arrive in later calls attend to those read before, and the state grows with them.
    False: what arrives together is one text, and only h and the tokens of an unfinished chunk are kept."""
    mapping: Literal["recurrent", "parallel"] = "recurrent"
    """A few chunks at a time, in flat memory, or all states at once, as the paper does; the same numbers."""
    merge: bool = False
    """Add the deltas to the weights, so that decoding is that of the base model."""
    bptt: Literal["detach", "full"] = "detach"
    """Whether training follows the state through the windows before."""
    form: Literal["queries", "segments"] = "queries"
    """What training with a window learns from: queries in a sliding window, as in use; or disjoint segments of
    `stride` tokens that see nothing of the text before them but the state, see `segments`."""
    step_segments: int = 4
    """Segments of a text that an optimiser step takes (`form=segments`); the state is carried on to the next."""
    rehearse: bool = False
    """With `form=segments` every other step takes half as many segments and reads them twice: of the second reading,
    everything stands in the state, so that holding on to what was read is worth learning from the first step on."""
    seed: int = 0
    """Of initial weights."""

    def __post_init__(self) -> None:
        at_least(1, queries=self.queries, down=self.down, chunk=self.chunk, stride=self.stride)
        at_least(1, step_segments=self.step_segments)
        at_least(0, gate_spread=self.gate_spread, query_std=self.query_std)
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.window is None:
            if self.form == "segments":
                raise ValueError("form=segments trains reading through a window, got window=None")
            return
        if self.window <= self.stride:
            raise ValueError(f"window must be larger than the stride {self.stride}, got {self.window}")
        if self.chunk > self.window:
            raise ValueError(f"chunk must be no larger than the window {self.window}, got {self.chunk}")
        if self.stride % self.chunk:
            raise ValueError(f"stride must be whole chunks of {self.chunk}, got {self.stride}")


PRESETS: Mapping[str, StreamAdapterSettings] = {
    "nano": StreamAdapterSettings(down=16, chunk=64, query_std=3.0),
    "nano-book": StreamAdapterSettings(down=16, chunk=64, query_std=3.0, window=1024),
    # 6.4 M parameters, 4.6 % of adapter and base together. Keys of SmolLM2 vary by a norm of 10.5 in a page, so that
    # queries of 1.5 begin with attention logits of a standard deviation of 2; gates hold the last 8 to 61 chunks. Short
    # segments: with those of 512 tokens a trained state was worth no more than that of another book.
    "smollm2-135m-book": StreamAdapterSettings(
        queries=14,
        down=8,
        chunk=32,
        query_std=1.5,
        gate_bias=-0.4,
        gate_spread=1.6,
        scale=0.02,
        centred=True,
        window=256,
        stride=128,
        form="segments",
        step_segments=12,
        rehearse=True,
    ),
    # What `profile` measures: any length in flat memory, decoding like the base model.
    "stream": StreamAdapterSettings(window=1024, merge=True),
    "tinyllama-1.1b": StreamAdapterSettings(),
    "tinyllama-1.1b-book": StreamAdapterSettings(window=1024),
    "llama-3-8b": StreamAdapterSettings(),
    "llama-3-8b-book": StreamAdapterSettings(window=1024),
    "phi-3-medium": StreamAdapterSettings(queries=48),
    "phi-3-medium-book": StreamAdapterSettings(queries=48, window=1024),
}

_NANO = Recipe(schedule="cosine", clip=1.0, beta2=0.98)
_PAPER = Recipe(schedule="cosine", beta2=0.95, decay=0.01)
RECIPES: Mapping[str, Recipe] = {
    "nano": replace(
        _NANO, documents=(5, 10, 20, 30), rounds=600, questions=8, batch_documents=160, steps=1600, lr=2.5e-4, warmup=50
    ),
    "nano-book": replace(_NANO, documents=(1,), batch_documents=1, steps=300, lr=4e-5, warmup=20),
    "smollm2-135m-book": replace(
        _NANO, documents=(1,), batch_documents=2, steps=4000, lr=5e-4, warmup=20, schedule="constant"
    ),
    "tinyllama-1.1b": replace(_PAPER, documents=(30,), batch_documents=480, lr=5e-5, warmup=100),
    "tinyllama-1.1b-book": replace(_PAPER, documents=(1,), batch_documents=8, lr=5e-5, warmup=500),
    "llama-3-8b": replace(_PAPER, documents=(60,), batch_documents=240, lr=2e-5, warmup=500),
    "llama-3-8b-book": replace(_PAPER, documents=(1,), batch_documents=4, lr=2e-5, warmup=500),
    "phi-3-medium": replace(_PAPER, documents=(60,), batch_documents=120, lr=1e-5, warmup=800),
    "phi-3-medium-book": replace(_PAPER, documents=(1,), batch_documents=2, lr=1e-5, warmup=500),
}
"""The paper trains for 3 epochs of its tasks and 1 of its books: set `--steps` for the data at hand. Books are read in
sequences of `--task-set sequence_tokens` (the paper: 8,192 for TinyLlama, 16,384 for the others)."""


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
