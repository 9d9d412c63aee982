"""Self-distillation from the model with the context: `distill`, `cartridge`, `lora_per_document`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json
from ttabench.cost import (
    FLOAT32_BYTES,
    Cost,
    LowRankFactors,
    Shape,
    Workload,
    closed_book_cost,
    select_linears,
    window_cost,
)
from ttabench.methods.parts.settings import Amount, LoraShape
from ttabench.methods.rag import word_index_bytes
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class SelfDistillationSettings(LoraShape):
    """Settings of methods that learn from a teacher with the context.

    Choose the learning rate on validation data.
    """

    rank: int = 16
    alpha: float = 16.0
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
        super().__post_init__()
        require_at_least(2, window=self.window, length=self.length)
        require_at_least(1, steps=self.steps, batch=self.batch)
        require_at_least(0, lr=self.lr)
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class DistillSettings(SelfDistillationSettings):
    """Settings of `distill`."""

    ask: Literal["text"] = "text"
    """Training texts of the student: the documents, which the teacher reads again after the
    context. Earlier versions had another default, so run ids contain this setting."""


@dataclass(frozen=True, kw_only=True)
class SelfStudySettings(SelfDistillationSettings):
    """Settings of methods that train on texts written by the base model."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, questions=self.questions)


@dataclass(frozen=True, kw_only=True)
class CartridgeSettings(SelfStudySettings):
    """Settings of `cartridge`."""

    target: Literal["cache", "deltas"] = "cache"
    """Student: a cache of `slots` slots, or weight deltas (LoRA) of `rank`, `alpha` and `targets`."""
    slots: int = 128
    """Keys and values of the cache, including the slot of the first token (BOS), which is not
    trained."""
    lr: float = 5e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, slots=self.slots)
        defaults = {each.name: each.default for each in fields(self)}
        unused = ("slots",) if self.target == "deltas" else ("rank", "alpha", "targets")
        for name in unused:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"target={self.target} does not use {name}")


@dataclass(frozen=True, kw_only=True)
class LoraPerDocumentSettings(SelfStudySettings):
    """Settings of `lora_per_document`; rank, alpha and lr are those of the paper's code."""

    rank: int = 2
    alpha: float = 32.0
    top: int = 3
    """Number of retrieved documents. Their LoRAs are added for a query."""
    steps: int = 16
    """Gradient steps on each document."""
    lr: float = 3e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, top=self.top)


OPENING_TOKENS = 5
"""Approximate number of tokens of a seed."""


def cost(settings: CartridgeSettings, shape: Shape, work: Workload) -> Cost:
    """Cost of the training texts, of the teacher, and of the gradient steps on the student.

    Assumes that all chunks arrive together and fit into the teacher's window, and counts a
    separator as one token.
    """
    s = settings
    if not work.chunk_tokens:
        return closed_book_cost(shape, work)
    context_tokens = shape.bos_tokens + work.tokens
    lengths, opening_tokens, writing_flops = _training_texts(settings, shape, work)
    teacher_flops = shape.forward_flops(context_tokens) + sum(
        shape.forward_flops(opening_tokens + length - 1, context_tokens) for length in lengths
    )
    if s.target == "deltas":
        factors = LowRankFactors(shape, s.rank, select_linears(s.targets, shape))
        base = _deltas_cost(factors, shape, work)
        prompt_tokens = shape.bos_tokens + (opening_tokens if s.seeds else 0)
        # without a prompt, nothing predicts the first token
        untrained_tokens = 0 if prompt_tokens else 1
        step_flops = [
            factors.step_flops(prompt_tokens + length - 1, length - untrained_tokens)
            for length in lengths
        ]
    else:
        base = _cache_cost(s.slots, shape, work)
        step_flops = [
            _cache_step_flops(s.slots, shape, opening_tokens + length - 1, length)
            for length in lengths
        ]
    # the teacher's logits are computed in every step
    example_flops = sum(step_flops) + shape.head_flops(sum(lengths))
    training_flops = s.steps * s.batch * example_flops // max(1, len(lengths))
    return replace(
        base,
        adapt_slots=context_tokens + opening_tokens + s.length,
        adapt_flops=base.adapt_flops + writing_flops + teacher_flops + training_flops,
    )


def _deltas_cost(factors: LowRankFactors, shape: Shape, work: Workload) -> Cost:
    """Return the cost of queries, with these factors as the state."""
    base = closed_book_cost(shape, work)
    query_tokens = shape.bos_tokens + work.query_positions
    return replace(
        base,
        state_floats=factors.size,
        state_bytes=FLOAT32_BYTES * factors.size,
        ask_flops=base.ask_flops + factors.forward_flops(query_tokens),
    )


def _cache_cost(slots: int, shape: Shape, work: Workload) -> Cost:
    """Return the cost of queries, with a cache of these slots as the state."""
    floats = shape.slot_floats * slots
    return window_cost(shape, work, slots, state_floats=floats, state_bytes=FLOAT32_BYTES * floats)


def _cache_step_flops(slots: int, shape: Shape, tokens: int, targets: int) -> int:
    """Return the FLOPs of a gradient step on a cache, see `LowRankFactors.step_flops`."""
    # the inputs of the first layer need no gradient
    input_size = sum(linear.size for linear in shape.attention_linears[:-1])
    backward_flops = 2 * tokens * (shape.layer_parameters - input_size)
    backward_flops += 2 * shape.width * shape.attended_pairs(tokens, slots) * (4 * shape.layers - 1)
    return shape.forward_flops(tokens, slots) + backward_flops + 2 * shape.head_flops(targets)


def _training_texts(
    settings: SelfStudySettings, shape: Shape, work: Workload
) -> tuple[list[int], int, int]:
    """Return the lengths of all training texts, the tokens of an opening, and FLOPs of writing."""
    s = settings
    if not s.seeds:
        lengths = [
            length
            for chunk in work.chunk_tokens
            for length in (*[s.length] * (chunk // s.length), chunk % s.length)
            if length > 1
        ]
        return lengths, 1, 0
    texts, flops = len(s.seeds) * s.questions, 0
    for before in (shape.bos_tokens + chunk for chunk in work.chunk_tokens):
        text_flops = shape.forward_flops(OPENING_TOKENS + s.length - 1, before)
        flops += shape.forward_flops(before) + texts * (text_flops + shape.head_flops(s.length))
    return [s.length] * (texts * len(work.chunk_tokens)), OPENING_TOKENS, flops


def lora_per_document_cost(settings: LoraPerDocumentSettings, shape: Shape, work: Workload) -> Cost:
    """Compute the cost of training one LoRA per document. Documents are English text."""
    base, documents = closed_book_cost(shape, work), len(work.chunk_tokens)
    if not documents:
        return base
    shared = {name: value for name, value in vars(settings).items() if name != "top"}
    student = CartridgeSettings(target="deltas", **shared)
    alone = [
        cost(student, shape, replace(work, chunk_tokens=(tokens,))) for tokens in work.chunk_tokens
    ]
    lora_flops = alone[0].ask_flops - base.ask_flops
    return replace(
        base,
        state_floats=sum(one.state_floats for one in alone),
        state_bytes=sum(one.state_bytes for one in alone)
        + word_index_bytes(work.tokens, documents),
        adapt_slots=max(one.adapt_slots for one in alone),
        adapt_flops=sum(one.adapt_flops for one in alone),
        ask_flops=base.ask_flops + min(settings.top, documents) * lora_flops,
    )


def _slots_option(amount: Amount) -> dict[str, Json]:
    if isinstance(amount, float):
        raise ValueError("a cartridge has a fixed number of slots. Use --keep-tokens")
    return {"slots": amount, "target": "cache"}


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
    summary="a KV cache or LoRA trained to reproduce the base model with the context",
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

LORA_PER_DOCUMENT = MethodSpec(
    name="lora_per_document",
    summary="a LoRA of each document; those of retrieved documents are added for each query",
    import_path="ttabench.methods.distill.lora_per_document:LoraPerDocument",
    Settings=LoraPerDocumentSettings,
    presets={
        # nano cannot write useful texts about a document
        "nano": LoraPerDocumentSettings(seeds=(), top=1, lr=3e-3)
    },
    growth="linear",
    query_aware=True,
    cost=lora_per_document_cost,
    test_settings=LoraPerDocumentSettings(length=16, steps=4, batch=2, questions=1, lr=1e-3, top=2),
    paper="2501.15915",
)

METHODS = (DISTILL, CARTRIDGE, LORA_PER_DOCUMENT)
