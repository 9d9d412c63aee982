"""What a run costs on paper: parameters, bytes and floating-point operations, from published shapes alone.

A multiply and an add count as two operations. One token costs a decoder `2 N + 4 L d c` operations forward, N being
the parameters of its layers, d the width of all its heads together and c how many positions it attends to (PaLM,
arXiv 2204.02311, appendix B, forward part); scoring a token adds `2 d V` for the head. Norms, biases and activations
are left out: under 1 % of any model listed here. No model is built and nothing heavy imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.architectures import ARCHITECTURES, NANO
from ttabench.types import Ask, Episode, Json

NANO_CONFIG = Path(__file__).parent / "assets" / "nano" / "config.json"
GATED = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma")
"""Architectures whose feed-forward has three matrices (gate, up, down) rather than two."""
CHARACTERS_A_TOKEN = 4
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}


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

    @property
    def body(self) -> int:
        """Parameters of the layers, without embeddings and head."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + (3 if self.gated else 2) * self.hidden * self.feed_forward)

    @property
    def parameters(self) -> int:
        """All parameters, norms, biases and learned positions aside."""
        return self.body + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def forward(self, tokens: int, context: int = 0) -> int:
        """Operations of reading `tokens` after `context` others; each attends to what stands before it."""
        attended = tokens * context + tokens * (tokens + 1) // 2
        return 2 * self.body * tokens + 4 * self.layers * self.heads * self.head_dim * attended

    def head(self, tokens: int) -> int:
        """Operations of the logits of `tokens` positions."""
        return 2 * self.hidden * self.vocabulary * tokens

    def cache_bytes(self, tokens: int, value_bytes: int) -> int:
        """Bytes of the keys and values of `tokens` positions."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * value_bytes


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much is read and asked in one episode; tokens are upper limits where the task only gives those."""

    pieces: int
    piece_tokens: int
    prompt_tokens: int
    new_tokens: int
    value_bytes: int = 4
    """Of the base model's number format."""


def workload(episode: Episode, dtype: str) -> Workload:
    """The sizes of an episode, at 4 characters a token: no tokenizer is loaded for an estimate."""
    asks = episode.asks()
    return Workload(
        pieces=len(episode.observes()),
        piece_tokens=_mean_tokens([piece.text for piece in episode.observes()]),
        prompt_tokens=_mean_tokens([ask.prompt for ask in asks]),
        new_tokens=max(_answer_tokens(ask) for ask in asks),
        value_bytes=BYTES.get(dtype, 4),
    )


def _answer_tokens(ask: Ask) -> int:
    """What is written or, of a given continuation, scored."""
    return max(1, round(len(ask.answers[0]) / CHARACTERS_A_TOKEN)) if ask.mode == "score" else ask.max_new_tokens


def _mean_tokens(texts: Sequence[str]) -> int:
    return max(1, round(sum(map(len, texts)) / CHARACTERS_A_TOKEN / len(texts))) if texts else 0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Analytic cost of one method on one workload."""

    parameters: int
    """Of the base model."""
    adapt_flops: int
    """Reading all pieces."""
    ask_flops: int
    """One query, its answer included."""
    state_bytes: int
    """After the last piece."""


def shape_from(config: Mapping[str, Any], model_type: str) -> Shape:
    """The shape in a transformers configuration, in the names of Llama, GPT-2 or OPT."""
    hidden = int(_first(config, "hidden_size", "n_embd"))
    heads = int(_first(config, "num_attention_heads", "n_head"))
    default = {"gpt2": True, "opt": True}.get(model_type, False)
    return Shape(
        layers=int(_first(config, "num_hidden_layers", "n_layer")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(_first(config, "num_key_value_heads", default=heads)),
        head_dim=int(_first(config, "head_dim", default=hidden // heads)),
        feed_forward=int(_first(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)),
        vocabulary=int(config["vocab_size"]),
        gated=model_type in GATED,
        tied=bool(config.get("tie_word_embeddings", default)),
    )


def _first(config: Mapping[str, Any], *names: str, default: int | None = None) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), default)


def shape_of(model: str) -> Shape | None:
    """The shape of a model known by name or of a local folder; None where only the hub knows it."""
    if model in ARCHITECTURES:
        known = ARCHITECTURES[model]
        return shape_from(known.config, known.model_type)
    path = NANO_CONFIG if model == NANO else Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return shape_from(config, str(config.get("model_type", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def estimate(method: str, settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost | None:
    """The analytic cost of a method, None where no formula is known."""
    formula = FORMULAS.get(method)
    return formula(settings, shape, work) if formula else None


def _answer(shape: Shape, work: Workload, context: int) -> int:
    """Reading the prompt and writing the answer token by token after `context` positions."""
    return shape.forward(work.prompt_tokens + work.new_tokens, context) + shape.head(work.new_tokens)


def _none(_: Mapping[str, Json], shape: Shape, work: Workload) -> Cost:
    return Cost(parameters=shape.parameters, adapt_flops=0, ask_flops=_answer(shape, work, 0), state_bytes=0)


def _icl(settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost:
    tokens = work.pieces * work.piece_tokens
    if settings.get("max_tokens"):
        tokens = min(tokens, int(settings["max_tokens"]))
    return Cost(
        parameters=shape.parameters,
        adapt_flops=shape.forward(tokens),
        ask_flops=_answer(shape, work, tokens),
        state_bytes=shape.cache_bytes(tokens, work.value_bytes),
    )


T5_SHAPES: Mapping[str, tuple[int, int, int, int]] = {
    "t5-small": (512, 6, 512, 2048),
    "t5-base": (768, 12, 768, 3072),
    "t5-large": (1024, 24, 1024, 4096),
}
"""Width, layers of encoder and of decoder, width of all heads, feed-forward (T5, arXiv 1910.10683, section 3.7)."""


def _t5_shape(name: str) -> tuple[int, int, int, int] | None:
    numbers = name.removeprefix("scratch:").split(",")
    if name.startswith("scratch:") and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
        width, layers, _, inner = map(int, numbers)
        return width, layers, width, inner
    return T5_SHAPES.get(name)


def _amortise(t5: tuple[int, int, int, int], tokens: int, latents: int, hidden: int) -> int:
    """Encoder over the text, decoder over the latent slots (they see each other causally and all of the text), MLPs."""
    width, layers, heads, inner = t5
    attention, feed = 4 * width * heads, 2 * width * inner
    encoder = 2 * tokens * (attention + feed) + 4 * heads * tokens * tokens
    crossed = 2 * (2 * width * heads * latents + 2 * width * heads * tokens) + 4 * heads * latents * tokens
    decoder = 2 * latents * (attention + feed) + 2 * heads * latents * (latents + 1) + crossed
    slots = 2 * latents * (width * hidden + hidden * hidden + (0 if width == hidden else width * hidden))
    return layers * (encoder + decoder) + slots


def _mac(settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost | None:
    """MAC (arXiv 2403.04317): documents and questions through T5s, attention over the bank, expansion, base LM."""
    documents, questions = _t5_shape(settings["amortiser"]), _t5_shape(settings["input_encoder"])
    if documents is None or questions is None:
        return None
    latents, hidden = int(settings["num_virtual_tokens"]), shape.hidden
    kept = min(work.pieces, settings["bank_cap"] or work.pieces)
    inner, feed = settings["heads"] * settings["head_dim"], min(hidden, 768)
    own = 2 * latents * hidden * inner * 2 + 4 * latents * hidden * feed
    bank = 2 * kept * latents * hidden * inner * 2 + 4 * kept * latents * latents * inner
    made = 2 * shape.layers * settings["prefix_length"]
    wide, out = settings["expansion_hidden"], shape.kv_heads * shape.head_dim
    expansion = 2 * made * (hidden * wide + wide * out + (0 if out == hidden else hidden * out))
    question = _amortise(questions, min(work.prompt_tokens, settings["question_tokens"]), latents, hidden)
    piece = _amortise(documents, min(work.piece_tokens, settings["document_tokens"]), latents, hidden)
    answer = _answer(shape, work, settings["prefix_length"])
    return Cost(
        parameters=shape.parameters,
        adapt_flops=work.pieces * piece,
        ask_flops=question + settings["blocks"] * (own + bank) + expansion + answer,
        state_bytes=kept * latents * hidden * (2 if settings["bank_dtype"] == "bfloat16" else 4),
    )


def _amount(amount: int | float, tokens: int) -> int:
    return max(1, int(amount * tokens)) if isinstance(amount, float) else amount


def _evicting(shape: Shape, work: Workload, kept: int, watching: int, slot_bytes: int) -> Cost:
    """Full attention while reading (`chunk` lowers it), `watching` pairs of token and slot scored once more."""
    tokens = work.pieces * work.piece_tokens
    kept = min(kept, tokens)
    return Cost(
        parameters=shape.parameters,
        adapt_flops=shape.forward(tokens) + 2 * shape.layers * shape.heads * shape.head_dim * watching,
        ask_flops=_answer(shape, work, kept),
        state_bytes=shape.cache_bytes(kept, work.value_bytes) + shape.layers * shape.kv_heads * kept * slot_bytes,
    )


def _snapkv(settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost:
    """SnapKV (arXiv 2404.14469): the window's attention once more; 4 bytes of index a slot and head."""
    tokens = work.pieces * work.piece_tokens
    kept, window = (_amount(settings[key], tokens) for key in ("budget", "window"))
    return _evicting(shape, work, kept, min(window, tokens) * tokens, 4)


def _h2o(settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost:
    """H2O (arXiv 2306.14048): all attention once more; index and score, 8 bytes a slot and head."""
    tokens = work.pieces * work.piece_tokens
    kept = sum(_amount(settings[key], tokens) for key in ("heavy", "recent"))
    return _evicting(shape, work, kept, tokens * (tokens + 1) // 2, 8)


def _window(settings: Mapping[str, Json], shape: Shape, work: Workload) -> Cost:
    """Sinks and recent tokens (arXiv 2309.17453): in a stream every token attends to no more than is kept."""
    kept = int(settings["n_sink"]) + int(settings["recent"])
    tokens = work.pieces * work.piece_tokens
    if settings["mode"] == "stride":  # what stays is read again for every query, and held while it is answered
        kept = min(int(settings["recent"]) - 1, tokens)
        again = shape.forward(kept) + _answer(shape, work, kept)
        held = shape.cache_bytes(kept, work.value_bytes)
        return Cost(parameters=shape.parameters, adapt_flops=0, ask_flops=again, state_bytes=held)
    cost = _evicting(shape, work, kept, 0, 0)
    if settings["mode"] == "postprefill" or tokens <= kept:
        return cost
    return replace(cost, adapt_flops=shape.forward(kept) + (tokens - kept) * shape.forward(1, kept - 1))


FORMULAS: dict[str, Callable[[Mapping[str, Json], Shape, Workload], Cost | None]] = {
    "none": _none,
    "icl": _icl,
    "window": _window,
    "snapkv": _snapkv,
    "h2o": _h2o,
    "mac": _mac,
}
