"""Self-distillation from the base model with the context: `distill` (LoRA), `cartridge`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json
from ttabench.cost import FLOAT32_BYTES, Cost, Shape, Workload, closed_book_cost, window_cost
from ttabench.methods.parts.settings import Amount, LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class SelfDistillationSettings:
    """Settings of methods that learn from a teacher with the context.

    Choose the learning rate on validation data.
    """

    length: int = 64
    """Maximum tokens of a training text."""
    window: int = 2048
    """Maximum tokens of context that the teacher reads at once; fewer if the base model has fewer
    positions."""
    steps: int = 64
    """Gradient steps on the text read between two queries."""
    batch: int = 8
    """Training texts of one step."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    clip: float = 1.0
    """Maximum gradient norm."""
    seed: int = 0
    """Random seed of all draws."""

    def __post_init__(self) -> None:
        require_at_least(2, window=self.window, length=self.length)
        require_at_least(1, steps=self.steps, batch=self.batch)
        require_at_least(0, lr=self.lr)
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class DistillSettings(SelfDistillationSettings, LoraShape):
    """Settings of `distill`."""

    rank: int = 16
    alpha: float = 16.0
    ask: Literal["text"] = "text"
    """Training texts of the student: the documents, which the teacher reads again after the
    context. Earlier versions had another default, so run ids contain this setting."""

    def __post_init__(self) -> None:
        SelfDistillationSettings.__post_init__(self)
        LoraShape.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class CartridgeSettings(SelfDistillationSettings):
    """Settings of `cartridge`."""

    slots: int = 128
    """Keys and values of the cache, including the slot of the first token (BOS), which is not
    trained."""
    seeds: tuple[str, ...] = (
        "Question:",
        "Summary:",
        "The facts:",
        "In other words:",
        "What one can do with this:",
    )
    """Prompts after each document, which the base model continues to write training texts. Empty:
    it rereads the documents."""
    questions: int = 4
    """Texts sampled from the base model, at temperature 1, for each document and seed."""
    lr: float = 5e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, slots=self.slots)
        require_at_least(1, questions=self.questions)


OPENING_TOKENS = 5
"""Approximate number of tokens of a seed."""


def cost(settings: CartridgeSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of the training texts, of the teacher, and of the gradient steps on the cache.

    Assumes that all chunks arrive together and fit into the teacher's window, and counts a
    separator as one token.
    """
    s, slots = settings, settings.slots
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    context_tokens, writing_flops = shape.bos_tokens + work.tokens, 0
    if s.seeds:
        texts, opening_tokens = len(s.seeds) * s.questions, OPENING_TOKENS
        examples = [s.length] * (texts * len(work.chunk_tokens))
        for before in (shape.bos_tokens + chunk for chunk in work.chunk_tokens):
            text_flops = shape.forward_flops(
                opening_tokens + s.length - 1, before
            ) + shape.head_flops(s.length)
            writing_flops += shape.forward_flops(before) + texts * text_flops
    else:
        opening_tokens = 1
        examples = [
            length
            for chunk in work.chunk_tokens
            for length in (*[s.length] * (chunk // s.length), chunk % s.length)
            if length > 1
        ]
    read_tokens = [opening_tokens + length - 1 for length in examples]
    teacher_flops = shape.forward_flops(context_tokens) + sum(
        shape.forward_flops(tokens, context_tokens) for tokens in read_tokens
    )
    input_size = sum(linear.size for linear in shape.attention_linears[:-1])
    example_flops = 0
    for tokens, length in zip(read_tokens, examples, strict=True):
        # the inputs of the first layer need no gradient
        backward_flops = 2 * tokens * (shape.layer_parameters - input_size)
        backward_flops += (
            2 * shape.width * shape.attended_pairs(tokens, slots) * (4 * shape.layers - 1)
        )
        example_flops += (
            shape.forward_flops(tokens, slots) + backward_flops + 3 * shape.head_flops(length)
        )
    training_flops = s.steps * s.batch * example_flops // max(1, len(examples))
    floats = shape.slot_floats * slots
    return window_cost(
        shape,
        work,
        slots,
        state_floats=floats,
        state_bytes=FLOAT32_BYTES * floats,
        adapt_slots=context_tokens + opening_tokens + s.length,
        adapt_flops=writing_flops + teacher_flops + shape.forward_flops(slots) + training_flops,
    )


def _slots_option(amount: Amount) -> dict[str, Json]:
    if isinstance(amount, float):
        raise ValueError("a cartridge has a fixed number of slots. Use --keep-tokens")
    return {"slots": amount}


DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA trained to reproduce the base model with the context",
    import_path="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets={"nano": DistillSettings(steps=16, lr=1e-2)},
    growth="constant",
    test_settings=DistillSettings(rank=2, length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
    deprecated_settings={
        "target": "lora",
        "slots": 64,
        "ask": "self",
        "questions": 4,
        "temperature": 1.0,
        "template": "Question: {question}\nAnswer:",
    },
)

CARTRIDGE = MethodSpec(
    name="cartridge",
    summary="a KV cache trained to reproduce the base model with the context",
    import_path="ttabench.methods.distill.cartridge:Cartridge",
    Settings=CartridgeSettings,
    presets={
        # nano cannot write useful texts about a document
        "nano": CartridgeSettings(seeds=(), steps=256, lr=1e-1),
        "smollm2-135m": CartridgeSettings(seeds=(), steps=32),
    },
    growth="constant",
    keep=_slots_option,
    cost=cost,
    test_settings=CartridgeSettings(slots=8, length=16, steps=4, batch=2, questions=1, lr=1e-2),
    paper="2506.06266",
)

METHODS = (DISTILL, CARTRIDGE)
