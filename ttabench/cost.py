"""What a run costs on paper, from published shapes alone: parameters, bytes kept, slots alive, operations.

One token costs `2 N + 4 L d c`, N being the parameters of the layers, d the width of all heads together and c how many
positions it attends to (PaLM, arXiv 2204.02311, appendix B, forward part); the logits of a token add `2 D V`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttabench.core.architectures import ARCHITECTURES, NANO
from ttabench.core.errors import UserError
from ttabench.core.files import read_json
from ttabench.core.types import Json

NANO_CONFIG = Path(__file__).parent / "assets" / "nano" / "config.json"
GATED_MODEL_TYPES = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma", "gemma3_text")
"""Architectures whose feed-forward has three matrices (gate, up, down) rather than two."""
FUSED_QKV_NAMES = {"gpt2": "c_attn", "phi3": "qkv_proj"}
"""The one map that makes queries, keys and values, in architectures that have one."""
EXTRA_LEARNED_POSITIONS = {"gpt2": 0, "opt": 2}
"""Architectures with positions in a table, and how many more than it can use it has; they have biases too."""
MIXED_WINDOW_MODEL_TYPES = ("gemma2", "gemma3_text")
"""Architectures in which some layers have a window and others attend to all."""
NO_BOS_MODEL_TYPES = ("gpt2", "qwen2", "qwen3")
"""Architectures whose texts start without a BOS token."""


@dataclass(frozen=True)
class Linear:
    """One linear map of a decoder layer."""

    name: str
    """Last part of its name in transformers."""
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        """Parameters, bias aside."""
        return self.inputs * self.outputs

    @property
    def parameters_per_rank(self) -> int:
        """Parameters of a low-rank delta of it, per rank."""
        return self.inputs + self.outputs


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a decoder that its cost depends on."""

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
    """Tokens that begin a text: 1 where the model has a BOS, else 0."""
    positions: int | None = None
    """Most positions; None where unknown."""
    sliding_window: int | None = None
    """Positions a token attends to at most in every layer; None in most models: all."""
    counts_masked_pairs: bool = False
    """Count masked pairs of a reading too, as attention that gets a mask computes them (and torch's FlopCounterMode
    counts them)."""

    @property
    def width(self) -> int:
        """Of all query heads together."""
        return self.heads * self.head_dim

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """Of one layer, its output projection last."""
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
        """Of the feed-forward of one layer."""
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
        """Every linear map of one layer."""
        return (*self.attention_linears, *self.mlp_linears)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the layers, without embeddings and head."""
        return self.layers * sum(linear.size for linear in self.linears)

    @property
    def parameters(self) -> int:
        """All parameters; those of Llama-likes without biases, of GPT-2 and OPT exactly."""
        norms = (2 * self.layers + 1) * self.hidden
        if (
            self.model_type == "gemma3_text"
        ):  # behind attention and feed-forward too, and of queries and keys
            norms += 2 * self.layers * (self.hidden + self.head_dim)
        if self.model_type in EXTRA_LEARNED_POSITIONS:
            learned = (self.positions or 0) + EXTRA_LEARNED_POSITIONS[self.model_type]
            biases = self.layers * sum(linear.outputs for linear in self.linears)
            norms = 2 * norms + biases + learned * self.hidden
        return (
            self.layer_parameters + norms + (1 if self.tied else 2) * self.vocabulary * self.hidden
        )

    def attended_pairs(self, tokens: int, context: int = 0, window: int | None = None) -> int:
        """Pairs of a token and a position it attends to, of `tokens` after `context` others. `context`: positions in
        front of them; `window`: a token attends to no more positions than that, itself included; None to all that
        `sliding_window` allows."""
        if self.counts_masked_pairs:
            return tokens * (context + tokens)
        if self.sliding_window is not None:
            window = min(window or self.sliding_window, self.sliding_window)
        growing = tokens if window is None else min(tokens, max(0, window - context))
        whole = growing * context + growing * (growing + 1) // 2
        return whole if window is None else whole + (tokens - growing) * window

    def attention_flops(self, attended_pairs: int) -> int:
        """Operations of scores and weighted values of so many pairs, in all heads and layers."""
        return 4 * self.layers * self.width * attended_pairs

    def forward_flops(self, tokens: int, context: int = 0, window: int | None = None) -> int:
        """Operations of reading `tokens` after `context` others, without the head; see `attended_pairs`."""
        return 2 * self.layer_parameters * tokens + self.attention_flops(
            self.attended_pairs(tokens, context, window)
        )

    def head_flops(self, tokens: int) -> int:
        """Operations of the logits of `tokens` positions."""
        return 2 * self.hidden * self.vocabulary * tokens

    @property
    def slot_floats(self) -> int:
        """Numbers in the keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def cache_bytes(self, slots: int, value_bytes: int) -> int:
        """Bytes of the keys and values of so many positions."""
        return self.slot_floats * slots * value_bytes


def shape_from(config: Mapping[str, Any], model_type: str) -> Shape:
    """The shape in a transformers configuration, in the names of Llama, GPT-2 or OPT."""
    hidden = int(_first_value(config, "hidden_size", "n_embd"))
    heads = int(_first_value(config, "num_attention_heads", "n_head"))
    positions = _first_value(config, "max_position_embeddings", "n_positions")
    windowed = model_type not in MIXED_WINDOW_MODEL_TYPES and config.get("use_sliding_window", True)
    sliding_window = config.get("sliding_window") if windowed else None
    if not isinstance(positions, int | None) or not isinstance(sliding_window, int | None):
        raise TypeError("positions and windows are whole numbers")
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
    """The shape of a model known by name or of a local folder; None where only the hub knows it."""
    if model in ARCHITECTURES:
        known = ARCHITECTURES[model]
        shape = shape_from(known.config, known.model_type)
        return shape if known.adds_bos else replace(shape, bos_tokens=0)
    path = NANO_CONFIG if model == NANO else Path(model) / "config.json"
    try:
        config = read_json(path)
        return shape_from(config, str(config.get("model_type", "")))
    except Exception:  # a configuration of others may say anything
        return None


def select_linears(targets: Sequence[str], shape: Shape) -> list[Linear]:
    """The linear maps of a layer that are named; all of them where none is."""
    known = sorted({linear.name for linear in shape.linears})
    missing = [target for target in targets if target not in known]
    if missing:
        raise UserError(
            f"The base has no linear map {missing[0]!r}.", f"It has {', '.join(known)}."
        )
    return [linear for linear in shape.linears if not targets or linear.name in targets]


@dataclass(frozen=True)
class LowRankFactors:
    """Low-rank factors of the same linear maps in every layer."""

    shape: Shape
    rank: int
    maps: list[Linear]

    @property
    def size(self) -> int:
        """Parameters."""
        return (
            self.shape.layers * self.rank * sum(linear.parameters_per_rank for linear in self.maps)
        )

    def forward_flops(self, tokens: int) -> int:
        """Operations that they add to reading so many tokens."""
        return 2 * self.size * tokens

    def step_flops(self, tokens: int, targets: int, context: int = 0) -> int:
        """Operations of a gradient step on `tokens` behind `context` others, of which `targets` positions have a
        loss."""
        forward_cost = (
            self.shape.forward_flops(tokens, context)
            + self.shape.head_flops(targets)
            + self.forward_flops(tokens)
        )
        return forward_cost + self._backward(tokens, context) + self.shape.head_flops(targets)

    def _backward(self, tokens: int, context: int) -> int:
        """Gradients of all factors, and of what enters a map wherever factors stand before it."""
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
        # back through attention: products of weights, queries, keys, values; in the first layer, of what is adapted
        adapted = [linear in self.maps for linear in inputs_of_attention]
        queries, keys, values = adapted if len(adapted) == 3 else adapted * 3
        products = 4 * (shape.layers - 1) + (queries or keys) + queries + keys + values
        return linears + 2 * shape.width * shape.attended_pairs(tokens, context) * products


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
INT64_BYTES = 8
"""Bytes of a token id, a position or a count in a state (int64)."""
FLOAT32_BYTES = 4
"""Bytes of a float32, or of an index (int32)."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much is read and asked in one episode."""

    chunk_tokens: tuple[int, ...]
    """Tokens of every piece, its joiner included; no BOS."""
    prompt_tokens: int
    new_tokens: int
    """Tokens written, EOS included; an upper limit where a task only gives that."""
    value_bytes: int = 4
    """Of the base model's number format."""

    @property
    def tokens(self) -> int:
        """Of all pieces."""
        return sum(self.chunk_tokens)

    @property
    def query_positions(self) -> int:
        """Positions of prompt and answer: the last token written is never read."""
        return self.prompt_tokens + self.new_tokens - 1


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Analytic cost of one method on one workload. Keys and values of one position of all layers are one slot."""

    parameters: int
    """Of the base model."""
    added_parameters: int = 0
    """Trained beforehand and kept beside the base model."""
    state_floats: int = 0
    """Fractional numbers in the state after the last piece: keys, values, latents, deltas, moments, scores."""
    state_bytes: int = 0
    """Of the whole state, its token ids, places and counts too."""
    adapt_slots: int = 0
    """Most slots alive while adapting (of what a gradient step keeps, only these)."""
    ask_slots: int = 0
    """Most slots alive while one query is answered."""
    adapt_flops: int = 0
    """Reading all pieces, and whatever all later queries share."""
    ask_flops: int = 0
    """One query, its answer included."""
    positions: int = 0
    """Positions that the base model must have."""


def answer_flops(shape: Shape, work: Workload, context: int, *, has_bos: bool) -> int:
    """Operations of reading the prompt behind `context` slots and writing the answer token by token. `context`: slots
    in front of the prompt; `has_bos`: whether the context holds what begins a text; else the prompt starts with it."""
    prompt = work.prompt_tokens + (0 if has_bos else shape.bos_tokens)
    # a token that is written attends to what is there: nothing is masked
    written = replace(shape, counts_masked_pairs=False).forward_flops(
        work.new_tokens - 1, context + prompt
    )
    return shape.forward_flops(prompt, context) + written + shape.head_flops(work.new_tokens)


def closed_book_cost(shape: Shape, work: Workload) -> Cost:
    """The base model as it is, with weights merged into it or without: no context in the window, no state."""
    asking = answer_flops(shape, work, 0, has_bos=False)
    return window_cost(
        shape, work, shape.bos_tokens, adapt_slots=0, adapt_flops=0, ask_flops=asking
    )


def window_cost(shape: Shape, work: Workload, slots: int, **figures_given: int) -> Cost:
    """So many slots, which are read once, before the first query, and stand in front of each; `figures_given`: other figures."""
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
    """A state of the newest `tokens` tokens, which are read once, before the first query."""
    return window_cost(
        shape, work, shape.bos_tokens + tokens, state_bytes=INT64_BYTES * (tokens + 1)
    )


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method that has none."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A method on paper."""

    name: str
    Settings: type[Any] = NoSettings
    """A frozen dataclass, every field with a default and a docstring under it; it refuses values with ValueError."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Settings by preset name; a preset named like the base model is its default."""
    paper: str = ""
    """arXiv id."""
    cost: Callable[[Any, Shape, Workload], Cost | None] | None = None
    """What it costs: (settings, base model, what is read and asked); None where no formula is known at all, or for
    these settings."""
    deprecated_settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings of earlier versions, with the one value that there is now: stored runs name them."""
