"""StreamAdapter: chunks of a key/value cache, summarised into weight deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ttabench.core.errors import at_least
from ttabench.core.types import Json
from ttabench.cost import INTEGER, SINGLE, Cost, Shape, Workload, answer, closed_book, targeted
from ttabench.methods.spec import MethodSpec, Recipe


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
    scale: float = 1.0
    """Factor of every delta. The paper has none; it lets one learning rate suit states of any size."""
    window: int | None = None
    """Sliding window: so many tokens stand in the window, and what leaves it goes into the weights. None: everything
    that is read goes into the weights."""
    stride: int = 512
    """Tokens that leave a full window together; whole chunks."""
    merge: bool = False
    """Add the deltas to the weights, so that decoding is that of the base model."""
    seed: int = 0
    """Of initial weights."""

    def __post_init__(self) -> None:
        at_least(1, queries=self.queries, down=self.down, chunk=self.chunk, stride=self.stride)
        at_least(0, query_std=self.query_std)
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.window is None:
            return
        if self.window <= self.stride:
            raise ValueError(f"window must be larger than the stride {self.stride}, got {self.window}")
        if self.chunk > self.window:
            raise ValueError(f"chunk must be no larger than the window {self.window}, got {self.chunk}")
        if self.stride % self.chunk:
            raise ValueError(f"stride must be whole chunks of {self.chunk}, got {self.stride}")


_NANO = Recipe(schedule="cosine", clip=1.0, beta2=0.98)
_PAPER = Recipe(schedule="cosine", beta2=0.95, decay=0.01)


def cost(settings: StreamAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """StreamAdapter (arXiv 2411.09289, equations 4 to 8). Without `window` everything is read by the base model and
    mapped; with it, the oldest `stride` tokens leave a full window, are read by the weights in force and mapped, and
    what stays is read anew."""
    s, maps, wide = settings, targeted(settings.targets, shape), shape.kv_heads * settings.down
    inputs, outputs = (shape.layers * sum(getattr(one, end) for one in maps) for end in ("inputs", "outputs"))
    vectors = shape.layers * len(maps) * s.queries  # of the state, each of `wide` numbers
    # queries, a down-projection for all heads, and a gate
    own = shape.kv_heads * s.queries * shape.head_dim + shape.head_dim * s.down + wide + 1
    added = shape.layers * len(maps) * own + wide * inputs + s.queries * outputs
    state, written, token = vectors * wide, 2 * s.queries * wide * inputs, 2 * s.queries * (inputs + outputs)
    shared = written + (2 * shape.layers * s.queries * sum(one.size for one in maps) if s.merge else 0)
    asked = 0 if s.merge else token  # of a token under deltas that are not merged

    def mapped(chunks: int, slots: int) -> int:
        """Attention to each slot, projection, gate, and a sum over chunks, a product where there are several."""
        attended = 4 * shape.kv_heads * shape.head_dim * vectors * slots
        return chunks * (attended + (2 * shape.head_dim + (4 if chunks > 1 else 2)) * state)

    bare, start = replace(closed_book(shape, work), added_parameters=added), shape.starts
    if not work.pieces:
        return bare
    if s.window is None:
        (chunks, left), rest = divmod(work.tokens, s.chunk), s.chunk - 1  # room for a chunk that is not full
        short = mapped(1, rest if shape.dense else left) if left else 0
        return replace(
            bare,
            state_floats=state + shape.slot_floats * rest,
            state_bytes=SINGLE * state + shape.cache_bytes(rest, work.value_bytes) + INTEGER,
            adapt_slots=rest + start + work.tokens,
            ask_slots=rest + bare.ask_slots,
            adapt_flops=shape.forward(start + work.tokens) + mapped(chunks, s.chunk) + short + shared,
            ask_flops=bare.ask_flops + asked * (start + work.asked),
            positions=max(start + work.tokens, bare.positions),
        )
    times, leaving = max(0, 1 + (work.tokens - (s.window - 1)) // s.stride), start + s.stride
    kept = work.tokens - times * s.stride
    slots, most = (start + kept if kept else 0), leaving if times else 0
    evicting = written + shape.forward(leaving) + token * leaving + mapped(s.stride // s.chunk, s.chunk)
    prompted = work.asked + (0 if kept else start)
    return replace(
        bare,
        state_floats=state,
        state_bytes=SINGLE * state + INTEGER * (s.window - 2 + 1),
        adapt_slots=max(slots, most),
        ask_slots=slots + prompted,
        adapt_flops=times * evicting + shared + shape.forward(slots) + asked * slots,
        ask_flops=answer(shape, work, slots, begun=bool(kept)) + asked * prompted,
        positions=max(slots + prompted, most),
    )


RETIRED: Mapping[str, Json] = {
    "keep_cache": False, "mapping": "recurrent", "gate_spread": 0.0, "centred": False, "share_heads": True,
    "bptt": "detach", "form": "queries", "step_segments": 4, "rehearse": False,
}  # fmt: skip
STREAMADAPTER = MethodSpec(
    name="streamadapter",
    summary="weight deltas mapped from keys and values",
    where="ttabench.methods.streamadapter.method:StreamAdapter",
    Settings=StreamAdapterSettings,
    presets={
        "nano": StreamAdapterSettings(down=16, chunk=64, query_std=3.0),
        "nano-book": StreamAdapterSettings(down=16, chunk=64, query_std=3.0, window=1024),
        # 6.4 M parameters, 4.6 % of adapter and base together. Keys of SmolLM2 vary by a norm of 10.5 in a page, so
        # that queries of 1.5 begin with attention logits of a standard deviation of 2.
        "smollm2-135m-book": StreamAdapterSettings(
            queries=14, down=8, chunk=32, query_std=1.5, gate_bias=-0.4, scale=0.02, window=256, stride=128
        ),
        # What `profile` measures: any length in flat memory, decoding like the base model.
        "stream": StreamAdapterSettings(window=1024, merge=True),
        "tinyllama-1.1b": StreamAdapterSettings(),
        "tinyllama-1.1b-book": StreamAdapterSettings(window=1024),
        "llama-3-8b": StreamAdapterSettings(),
        "phi-3-medium": StreamAdapterSettings(queries=48),
    },
    # The paper trains for 3 epochs of its tasks and 1 of its books: set `--steps` for the data at hand. Books are read
    # in sequences of `--task-set sequence_tokens` (the paper: 8,192 for TinyLlama, 16,384 for the others).
    recipes={
        "nano": replace(
            _NANO,
            documents=(5, 10, 20, 30),
            rounds=600,
            questions=8,
            batch_documents=160,
            steps=1600,
            lr=2.5e-4,
            warmup=50,
        ),
        "nano-book": replace(_NANO, documents=(1,), batch_documents=1, steps=300, lr=4e-5, warmup=20),
        "smollm2-135m-book": replace(
            _NANO, documents=(1,), batch_documents=2, steps=4000, lr=5e-4, warmup=20, schedule="constant"
        ),
        "tinyllama-1.1b": replace(_PAPER, documents=(30,), batch_documents=480, lr=5e-5, warmup=100),
        "tinyllama-1.1b-book": replace(_PAPER, documents=(1,), batch_documents=8, lr=5e-5, warmup=500),
        "llama-3-8b": replace(_PAPER, documents=(60,), batch_documents=240, lr=2e-5, warmup=500),
        "phi-3-medium": replace(_PAPER, documents=(60,), batch_documents=120, lr=1e-5, warmup=800),
    },
    growth="constant",
    trainable=True,
    cost=cost,
    checked=StreamAdapterSettings(queries=4, down=4, chunk=4, window=16, stride=8),
    paper="2411.09289",
    retired=RETIRED,
)
METHODS = (STREAMADAPTER,)
