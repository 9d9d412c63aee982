"""Analytic cost of a run from published shapes: parameters, bytes kept, live slots, FLOPs.

One token costs `2 N + 4 L d c`: N parameters of the layers, L layers, d total width of all heads, c
attended positions (PaLM, arXiv 2204.02311, appendix B, forward part). The logits of a token add
`2 D V`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UserError
from ttabench.core.files import read_json

NANO_CONFIG = Path(__file__).parent / "assets" / "nano" / "config.json"
GATED_MODEL_TYPES = "llama mistral phi3 qwen2 qwen3 smollm3 gemma gemma2 gemma3_text".split()
"""Architectures with three feed-forward matrices (gate, up, down) instead of two."""
MIXED_WINDOW_TYPES = ("gemma2", "gemma3_text")
"""Architectures of layers with and without a window, also in configurations without `layer_types`."""
FUSED_QKV_NAMES = {"gpt2": "c_attn", "phi3": "qkv_proj"}
"""Fused map for queries, keys and values, by architecture."""
EXTRA_LEARNED_POSITIONS = {"gpt2": 0, "opt": 2}
"""Unusable extra rows of the position table, for architectures with one. These have biases too."""
COVERED_MODEL_TYPES = (*GATED_MODEL_TYPES, *EXTRA_LEARNED_POSITIONS)
"""Architectures that the formula covers: attention and one feed-forward in every layer."""
NO_BOS_MODEL_TYPES = ("gpt2", "qwen2", "qwen3", "smollm3")
"""Architectures whose texts start without a BOS token."""


@dataclass(frozen=True)
class Linear:
    """Linear map of a decoder layer."""

    name: str
    """Last part of its name in transformers."""
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        """Parameters without bias."""
        return self.inputs * self.outputs

    @property
    def parameters_per_rank(self) -> int:
        """Parameters of a low-rank delta, per rank."""
        return self.inputs + self.outputs


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder that determine its cost."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    gated: bool
    tied: bool
    model_type: str = "llama"
    bos_tokens: int = 1
    """Tokens that start a text: 1 with BOS, else 0."""
    positions: int | None = None
    """Largest number of positions; None if unknown."""
    sliding_window: int | None = None
    """Largest number of positions that a token attends to in every layer; None for all."""
    counts_masked_pairs: bool = False
    """True to count masked pairs too, as attention with a mask and torch's FlopCounterMode do."""

    @property
    def width(self) -> int:
        """Total width of all query heads."""
        return self.heads * self.head_dim

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """Linear maps of the attention of one layer, the output projection last."""
        inner, hidden = self.kv_heads * self.head_dim, self.hidden
        inputs_of_attention = [("q_proj", self.width), ("k_proj", inner), ("v_proj", inner)]
        if self.model_type in FUSED_QKV_NAMES:
            inputs_of_attention = [(FUSED_QKV_NAMES[self.model_type], self.width + 2 * inner)]
        out = {"gpt2": "c_proj", "opt": "out_proj"}.get(self.model_type, "o_proj")
        return (
            *(Linear(name, hidden, size) for name, size in inputs_of_attention),
            Linear(out, self.width, hidden),
        )

    @property
    def mlp_linears(self) -> tuple[Linear, ...]:
        """Linear maps of the feed-forward of one layer."""
        wide, hidden = self.feed_forward, self.hidden
        if self.model_type == "phi3":
            return (Linear("gate_up_proj", hidden, 2 * wide), Linear("down_proj", wide, hidden))
        if self.gated:
            up = (Linear("gate_proj", hidden, wide), Linear("up_proj", hidden, wide))
            return (*up, Linear("down_proj", wide, hidden))
        names = {"gpt2": ("c_fc", "c_proj"), "opt": ("fc1", "fc2")}.get(
            self.model_type, ("up_proj", "down_proj")
        )
        return (Linear(names[0], hidden, wide), Linear(names[1], wide, hidden))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Linear maps of one layer."""
        return (*self.attention_linears, *self.mlp_linears)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the layers, without embeddings and head."""
        return self.layers * sum(linear.size for linear in self.linears)

    @property
    def parameters(self) -> int:
        """Total parameters: exact for named models; other biases of Llama-like models are missing."""
        norms = (2 * self.layers + 1) * self.hidden
        if self.model_type in MIXED_WINDOW_TYPES:  # also after attention and feed-forward
            norms += 2 * self.layers * self.hidden
        if self.model_type in ("gemma3_text", "qwen3"):  # also of queries and keys
            norms += 2 * self.layers * self.head_dim
        if self.model_type == "qwen2":  # biases of queries, keys and values
            norms += self.layers * (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.model_type in EXTRA_LEARNED_POSITIONS:
            learned = (self.positions or 0) + EXTRA_LEARNED_POSITIONS[self.model_type]
            biases = self.layers * sum(linear.outputs for linear in self.linears)
            norms = 2 * norms + biases + learned * self.hidden
        return (
            self.layer_parameters + norms + (1 if self.tied else 2) * self.vocabulary * self.hidden
        )

    def attended_pairs(self, tokens: int, context: int = 0, window: int | None = None) -> int:
        """Count pairs of a token and an attended position for `tokens` after `context` positions.

        `window` limits the positions per token, itself included; None allows those of
        `sliding_window`.
        """
        if self.counts_masked_pairs:
            return tokens * (context + tokens)
        if self.sliding_window is not None:
            window = min(window or self.sliding_window, self.sliding_window)
        growing = tokens if window is None else min(tokens, max(0, window - context))
        whole = growing * context + growing * (growing + 1) // 2
        return whole if window is None else whole + (tokens - growing) * window

    def attention_flops(self, attended_pairs: int) -> int:
        """Return the FLOPs of scores and weighted values of these pairs, over heads and layers."""
        return 4 * self.layers * self.width * attended_pairs

    def forward_flops(self, tokens: int, context: int = 0, window: int | None = None) -> int:
        """Return the FLOPs of reading `tokens` after `context`, without the head."""
        return 2 * self.layer_parameters * tokens + self.attention_flops(
            self.attended_pairs(tokens, context, window)
        )

    def head_flops(self, tokens: int) -> int:
        """Return the FLOPs of the logits of `tokens` positions."""
        return 2 * self.hidden * self.vocabulary * tokens

    @property
    def slot_floats(self) -> int:
        """Number of values in the keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def cache_bytes(self, slots: int, value_bytes: int) -> int:
        """Return the bytes of keys and values of `slots` positions."""
        return self.slot_floats * slots * value_bytes


def shape_from(config: Mapping[str, Any], model_type: str) -> Shape:
    """Read the shape from a transformers configuration with the names of Llama, GPT-2 or OPT.

    Raises:
        ValueError: the formula does not cover this architecture.
    """
    if model_type not in COVERED_MODEL_TYPES:
        raise ValueError(f"no cost formula for {model_type}")
    hidden = int(_first_value(config, "hidden_size", "n_embd"))
    heads = int(_first_value(config, "num_attention_heads", "n_head"))
    positions = _first_value(config, "max_position_embeddings", "n_positions")
    is_mixed = model_type in MIXED_WINDOW_TYPES or len(set(config.get("layer_types") or ())) > 1
    windowed = not is_mixed and config.get("use_sliding_window", True)
    sliding_window = config.get("sliding_window") if windowed else None
    if not isinstance(positions, int | None) or not isinstance(sliding_window, int | None):
        raise TypeError("positions and windows must be integers")
    return Shape(
        layers=int(_first_value(config, "num_hidden_layers", "n_layer")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(_first_value(config, "num_key_value_heads", default=heads)),
        head_dim=int(_first_value(config, "head_dim", default=hidden // heads)),
        feed_forward=int(
            _first_value(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
        ),
        vocabulary=int(config["vocab_size"]),
        gated=model_type in GATED_MODEL_TYPES,
        tied=bool(config.get("tie_word_embeddings", model_type in EXTRA_LEARNED_POSITIONS)),
        model_type=model_type,
        bos_tokens=0 if model_type in NO_BOS_MODEL_TYPES else 1,
        positions=positions,
        sliding_window=sliding_window,
    )


def _first_value(config: Mapping[str, Any], *names: str, default: int | None = None) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), default)


def shape_of(model: str) -> Shape | None:
    """Return the shape of a known model or local folder; None if unknown or not covered."""
    if model in ARCHITECTURES:
        known = ARCHITECTURES[model]
        shape = shape_from(known.config, known.model_type)
        return shape if known.adds_bos else replace(shape, bos_tokens=0)
    path = NANO_CONFIG if model == NANO else Path(model) / "config.json"
    try:
        config = read_json(path)
        return shape_from(config, str(config.get("model_type", "")))
    except Exception:  # a foreign configuration may contain anything
        return None


def select_linears(targets: Sequence[str], shape: Shape) -> list[Linear]:
    """Return the named linear maps of a layer; all of them if `targets` is empty."""
    known = sorted({linear.name for linear in shape.linears})
    missing = [target for target in targets if target not in known]
    if missing:
        raise UserError(
            f"The base model has no linear map {missing[0]!r}.", f"Use one of: {', '.join(known)}."
        )
    return [linear for linear in shape.linears if not targets or linear.name in targets]


@dataclass(frozen=True)
class LowRankFactors:
    """Low-rank deltas of the same linear maps in every layer."""

    shape: Shape
    rank: int
    maps: list[Linear]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return (
            self.shape.layers * self.rank * sum(linear.parameters_per_rank for linear in self.maps)
        )

    def forward_flops(self, tokens: int) -> int:
        """Return the FLOPs that they add to reading `tokens`."""
        return 2 * self.size * tokens

    def step_flops(self, tokens: int, targets: int, context: int = 0) -> int:
        """Return the FLOPs of a gradient step on `tokens` after `context`.

        `targets` positions have a loss.
        """
        forward_cost = (
            self.shape.forward_flops(tokens, context)
            + self.shape.head_flops(targets)
            + self.forward_flops(tokens)
        )
        return forward_cost + self._backward(tokens, context) + self.shape.head_flops(targets)

    def _backward(self, tokens: int, context: int) -> int:
        """Return the FLOPs of gradients of all factors, and of map inputs after the first factor."""
        shape = self.shape
        inputs_of_attention, out = shape.attention_linears[:-1], shape.attention_linears[-1:]
        stages = (inputs_of_attention, out, shape.mlp_linears[:-1], shape.mlp_linears[-1:])
        first = next(
            place
            for place, stage in enumerate(stages)
            if any(linear in self.maps for linear in stage)
        )
        below = sum(linear.size for stage in stages[: first + 1] for linear in stage)
        entering = self.rank * sum(linear.inputs for linear in stages[first] if linear in self.maps)
        linears = 2 * tokens * (shape.layer_parameters - below + 2 * self.size - entering)
        # backward through attention: products of weights, queries, keys and values; in the first
        # layer only those that lead to an adapted map
        adapted = [linear in self.maps for linear in inputs_of_attention]
        queries, keys, values = adapted if len(adapted) == 3 else adapted * 3
        products = 4 * (shape.layers - 1) + (queries or keys) + queries + keys + values
        return linears + 2 * shape.width * shape.attended_pairs(tokens, context) * products


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
INT64_BYTES = 8
"""Bytes of a token id, position or count in a state (int64)."""
FLOAT32_BYTES = 4
"""Bytes of a float32, or of an index (int32)."""
HALF_BYTES = 2
"""Bytes of a float16 or bfloat16."""
GROUP_SLOTS = 32
"""Slots that share scale and offset of a channel of quantised keys."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Tokens that are read and generated in one episode."""

    chunk_tokens: tuple[int, ...]
    """Tokens of every chunk with its joiner, without BOS."""
    prompt_tokens: int
    new_tokens: int
    """Generated tokens with EOS; an upper limit if the task gives only that."""
    value_bytes: int = 4
    """Bytes per value in the number format of the base model."""
    bits: int | None = None
    """Bits per key and value of a state (`--bits`), or None."""

    @property
    def tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(self.chunk_tokens)

    @property
    def query_positions(self) -> int:
        """Positions of prompt and answer. The last generated token is never read."""
        return self.prompt_tokens + self.new_tokens - 1

    def kv_bytes(self, shape: Shape, slots: int, *, is_ragged: bool = False) -> int:
        """Return the bytes of keys and values of `slots` positions in a state.

        With bits, see `ttabench.methods.quantised`. `is_ragged`: the cache is flat, because heads
        keep different slots; here each keeps equally many.
        """
        if self.bits is None:
            return shape.cache_bytes(slots, self.value_bytes)
        quantised = max(slots - 1, 0)
        if not is_ragged:
            quantised -= quantised % GROUP_SLOTS
        size, groups = shape.head_dim, -(-quantised // GROUP_SLOTS)
        codes = quantised * -(-size * self.bits // 8)
        scales_and_lows = 2 * HALF_BYTES * (groups * size + quantised)
        exact = HALF_BYTES * size * (slots - quantised)
        layout = INT64_BYTES * (3 if is_ragged else 6)  # bits, and 2 or 5 dimensions
        return shape.layers * shape.kv_heads * (2 * (codes + exact) + scales_and_lows) + 2 * layout


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Analytic cost of a method on a workload. A slot: keys and values of a position, all layers."""

    parameters: int
    """Parameters of the base model."""
    added_parameters: int = 0
    """Trained parameters in addition to the base model."""
    state_floats: int = 0
    """Floats in the final state: keys, values, latents, deltas, moments, scores."""
    state_bytes: int = 0
    """Bytes of the final state, including token ids, positions and counts."""
    adapt_slots: int = 0
    """Peak of live slots while adapting, without other tensors of a gradient step."""
    ask_slots: int = 0
    """Peak of live slots while answering a query."""
    adapt_flops: int = 0
    """FLOPs of reading all chunks, and of work shared by all queries."""
    ask_flops: int = 0
    """FLOPs of one query with its answer."""
    positions: int = 0
    """Required positions of the base model."""


def answer_flops(shape: Shape, work: Workload, context: int, *, has_bos: bool) -> int:
    """Return the FLOPs of reading the prompt after `context` slots and generating the answer.

    `has_bos`: the context contains the text start; otherwise the prompt starts with it.
    """
    prompt = work.prompt_tokens + (0 if has_bos else shape.bos_tokens)
    # a generated token attends to all slots: nothing is masked
    generated = replace(shape, counts_masked_pairs=False).forward_flops(
        work.new_tokens - 1, context + prompt
    )
    return shape.forward_flops(prompt, context) + generated + shape.head_flops(work.new_tokens)


def closed_book_cost(shape: Shape, work: Workload) -> Cost:
    """Return the cost of the base model without context and state, even with merged weights."""
    query_flops = answer_flops(shape, work, 0, has_bos=False)
    return window_cost(
        shape, work, shape.bos_tokens, adapt_slots=0, adapt_flops=0, ask_flops=query_flops
    )


def window_cost(shape: Shape, work: Workload, slots: int, **figures_given: int) -> Cost:
    """Return the cost of `slots` slots, read once before the first query and kept for each.

    `figures_given` replaces other figures.
    """
    query_positions = slots + work.query_positions
    figures = {
        "adapt_slots": slots,
        "ask_slots": query_positions,
        "adapt_flops": shape.forward_flops(slots),
        "ask_flops": answer_flops(shape, work, slots, has_bos=True),
        "positions": query_positions,
    }
    return Cost(parameters=shape.parameters, **{**figures, **figures_given})


def reread_cost(shape: Shape, work: Workload, tokens: int) -> Cost:
    """Return the cost of a state of the newest `tokens` tokens, read once before all queries."""
    return window_cost(
        shape, work, shape.bos_tokens + tokens, state_bytes=INT64_BYTES * (tokens + 1)
    )


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Empty settings."""
