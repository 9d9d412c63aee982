"""StreamAdapter: chunks of a KV cache, summarised into weight deltas."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import require_at_least
from ttabench.cost import (
    FLOAT32_BYTES,
    INT64_BYTES,
    Cost,
    Shape,
    Workload,
    answer_flops,
    closed_book_cost,
    select_linears,
)
from ttabench.methods.spec import MethodSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class StreamAdapterSettings:
    """Settings of `streamadapter`; the defaults are the paper's (TinyLlama-1.1B)."""

    queries: int = 16
    """Learned queries of every linear map: the rank of its delta."""
    down: int = 32
    """Channels d' to which the values of each head are projected."""
    chunk: int = 128
    """Tokens of a chunk."""
    temperature: float = 16.0
    """tau: the gate is sigmoid(...) ** (1 / tau)."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the adapted linear maps. Empty: all maps inside the layers."""
    query_std: float = 0.02
    """Standard deviation of the queries before training. Near 0, all queries of a map start with
    the mean of a chunk."""
    gate_bias: float = 0.0
    """Bias b of the gates before training. A state keeps about the last 24 chunks at 0, 8 at -2, 61
    at 1.2."""
    scale: float = 1.0
    """Factor of every delta. The paper has none; it allows one learning rate for states of any
    size."""
    window: int | None = None
    """Tokens of the sliding window; tokens that leave it are absorbed into the weights. None: all
    text is absorbed."""
    stride: int = 512
    """Tokens that leave a full window together, in whole chunks."""
    merge: bool = False
    """True to add the deltas to the weights, so that decoding is as fast as the base model's."""
    seed: int = 0
    """Random seed of the initial weights."""

    def __post_init__(self) -> None:
        require_at_least(
            1, queries=self.queries, down=self.down, chunk=self.chunk, stride=self.stride
        )
        require_at_least(0, query_std=self.query_std)
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.window is None:
            return
        if self.window <= self.stride:
            raise ValueError(
                f"window must be larger than the stride {self.stride}, got {self.window}"
            )
        if self.chunk > self.window:
            raise ValueError(
                f"chunk must be no larger than the window {self.window}, got {self.chunk}"
            )
        if self.stride % self.chunk:
            raise ValueError(f"stride must be a multiple of chunk={self.chunk}, got {self.stride}")


_NANO_RECIPE = Recipe(schedule="cosine", clip=1.0, beta2=0.98)
_PAPER_RECIPE = Recipe(schedule="cosine", beta2=0.95, decay=0.01)


def cost(settings: StreamAdapterSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of StreamAdapter (arXiv 2411.09289, equations 4 to 8).

    Without `window`, the base model reads everything, and it is mapped. With `window`, the oldest
    `stride` tokens leave a full window, are read by the adapted weights and mapped; the remaining
    tokens are read again.
    """
    s = settings
    maps = select_linears(settings.targets, shape)
    state_width = shape.kv_heads * settings.down
    inputs, outputs = (
        shape.layers * sum(getattr(linear, side) for linear in maps)
        for side in ("inputs", "outputs")
    )
    vectors = shape.layers * len(maps) * s.queries  # of the state, with `state_width` numbers each
    # queries, a down-projection for all heads, and a gate
    map_parameters = (
        shape.kv_heads * s.queries * shape.head_dim + shape.head_dim * s.down + state_width + 1
    )
    added = shape.layers * len(maps) * map_parameters + state_width * inputs + s.queries * outputs
    state = vectors * state_width
    delta_flops = 2 * s.queries * state_width * inputs
    token_flops = 2 * s.queries * (inputs + outputs)
    shared = delta_flops + (
        2 * shape.layers * s.queries * sum(linear.size for linear in maps) if s.merge else 0
    )
    query_token_flops = 0 if s.merge else token_flops  # per token, if deltas are not merged

    def mapping_flops(chunks: int, slots: int) -> int:
        """Return the operations of attention, projection, gate and the sum over chunks."""
        attended = 4 * shape.kv_heads * shape.head_dim * vectors * slots
        return chunks * (attended + (2 * shape.head_dim + (4 if chunks > 1 else 2)) * state)

    base, start = replace(closed_book_cost(shape, work), added_parameters=added), shape.bos_tokens
    if not work.chunk_tokens:
        return base
    if s.window is None:
        chunks, tail = divmod(work.tokens, s.chunk)
        max_tail = s.chunk - 1  # slots for an unfinished chunk
        tail_flops = (
            mapping_flops(1, max_tail if shape.counts_masked_pairs else tail) if tail else 0
        )
        return replace(
            base,
            state_floats=state + shape.slot_floats * max_tail,
            state_bytes=FLOAT32_BYTES * state
            + shape.cache_bytes(max_tail, work.value_bytes)
            + INT64_BYTES,
            adapt_slots=max_tail + start + work.tokens,
            ask_slots=max_tail + base.ask_slots,
            adapt_flops=shape.forward_flops(start + work.tokens)
            + mapping_flops(chunks, s.chunk)
            + tail_flops
            + shared,
            ask_flops=base.ask_flops + query_token_flops * (start + work.query_positions),
            positions=max(start + work.tokens, base.positions),
        )
    evictions = max(0, 1 + (work.tokens - (s.window - 1)) // s.stride)
    evicted_slots = start + s.stride
    kept = work.tokens - evictions * s.stride
    slots, max_evicted_slots = (start + kept if kept else 0), evicted_slots if evictions else 0
    eviction_flops = (
        delta_flops
        + shape.forward_flops(evicted_slots)
        + token_flops * evicted_slots
        + mapping_flops(s.stride // s.chunk, s.chunk)
    )
    prompt_tokens = work.query_positions + (0 if kept else start)
    return replace(
        base,
        state_floats=state,
        state_bytes=FLOAT32_BYTES * state + INT64_BYTES * (s.window - 2 + 1),
        adapt_slots=max(slots, max_evicted_slots),
        ask_slots=slots + prompt_tokens,
        adapt_flops=evictions * eviction_flops
        + shared
        + shape.forward_flops(slots)
        + query_token_flops * slots,
        ask_flops=answer_flops(shape, work, slots, has_bos=bool(kept))
        + query_token_flops * prompt_tokens,
        positions=max(slots + prompt_tokens, max_evicted_slots),
    )


STREAMADAPTER = MethodSpec(
    name="streamadapter",
    summary="weight deltas mapped from keys and values",
    import_path="ttabench.methods.streamadapter.method:StreamAdapter",
    Settings=StreamAdapterSettings,
    presets={
        "nano": StreamAdapterSettings(down=16, chunk=64, query_std=3.0),
        "nano-book": StreamAdapterSettings(down=16, chunk=64, query_std=3.0, window=1024),
        # 6.4 M parameters, 4.6 % of adapter and base together. Keys of SmolLM2 vary by a norm of
        # 10.5 in a page, so
        # queries of 1.5 start with attention logits of a standard deviation of 2.
        "smollm2-135m-book": StreamAdapterSettings(
            queries=14,
            down=8,
            chunk=32,
            query_std=1.5,
            gate_bias=-0.4,
            scale=0.02,
            window=256,
            stride=128,
        ),
        # Measured by `profile`: any length in constant memory, decoding like the base model.
        "stream": StreamAdapterSettings(window=1024, merge=True),
        "tinyllama-1.1b": StreamAdapterSettings(),
        "tinyllama-1.1b-book": StreamAdapterSettings(window=1024),
        "llama-3-8b": StreamAdapterSettings(),
        "phi-3-medium": StreamAdapterSettings(queries=48),
    },
    # The paper trains 3 epochs on its tasks and 1 on its books: set `--steps` for your data. Books
    # are read in
    # sequences of `--task-set sequence_tokens` (paper: 8,192 for TinyLlama, 16,384 for the others).
    recipes={
        "nano": replace(
            _NANO_RECIPE,
            documents=(5, 10, 20, 30),
            rounds=600,
            questions=8,
            batch_documents=160,
            steps=1600,
            lr=2.5e-4,
            warmup=50,
        ),
        "nano-book": replace(
            _NANO_RECIPE, documents=(1,), batch_documents=1, steps=300, lr=4e-5, warmup=20
        ),
        "smollm2-135m-book": replace(
            _NANO_RECIPE,
            documents=(1,),
            batch_documents=2,
            steps=4000,
            lr=5e-4,
            warmup=20,
            schedule="constant",
        ),
        "tinyllama-1.1b": replace(
            _PAPER_RECIPE, documents=(30,), batch_documents=480, lr=5e-5, warmup=100
        ),
        "tinyllama-1.1b-book": replace(
            _PAPER_RECIPE, documents=(1,), batch_documents=8, lr=5e-5, warmup=500
        ),
        "llama-3-8b": replace(
            _PAPER_RECIPE, documents=(60,), batch_documents=240, lr=2e-5, warmup=500
        ),
        "phi-3-medium": replace(
            _PAPER_RECIPE, documents=(60,), batch_documents=120, lr=1e-5, warmup=800
        ),
    },
    growth="constant",
    trainable=True,
    cost=cost,
    test_settings=StreamAdapterSettings(queries=4, down=4, chunk=4, window=16, stride=8),
    paper="2411.09289",
    deprecated_settings={
        "keep_cache": False,
        "mapping": "recurrent",
        "gate_spread": 0.0,
        "centred": False,
        "share_heads": True,
        "bptt": "detach",
        "form": "queries",
        "step_segments": 4,
        "rehearse": False,
    },
)
METHODS = (STREAMADAPTER,)
