"""Context distillation: a student without the context learns what the base says with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.amounts import CHARACTERS_A_TOKEN
from ttabench.core.bounds import at_least
from ttabench.core.types import Json
from ttabench.cost.load import SINGLE, Cost, Workload, answer, closed_book
from ttabench.cost.shape import Factors, Shape, targeted
from ttabench.methods.parts.amount import Amount
from ttabench.methods.parts.lora_shape import LoraShape
from ttabench.methods.spec import MethodSpec

JOINT = 1
"""Tokens between a context and what is read behind it, in most tokenizers."""

QUESTION = "{question}"
"""Where the question stands in a template."""


@dataclass(frozen=True, kw_only=True)
class DistillSettings(LoraShape):
    """Settings of `distill`; the learning rate is chosen on validation data."""

    rank: int = 16
    """Rank of each delta, with `target=lora`."""
    alpha: float = 16.0
    """Deltas are scaled by alpha / rank."""
    target: Literal["lora", "prefix"] = "lora"
    """What the student is. lora: the base under low-rank deltas; prefix: the base behind `slots` keys and values in
    each layer, which begin as those of the context's first tokens."""
    slots: int = 64
    """Keys and values of the prefix in each layer; the first one stays as it is."""
    ask: Literal["text", "self"] = "self"
    """What the student is trained on. self: answers that the teacher writes to questions that it writes about each
    document; text: the documents themselves, which the teacher reads once more behind the context."""
    questions: int = 4
    """Questions about each document, with `ask=self`."""
    temperature: float = 1.0
    """The teacher draws questions at this temperature; at 0 it writes the likeliest one. Answers are the likeliest."""
    template: str = "Question: {question}\nAnswer:"
    """How a question is put, with `ask=self`: the teacher goes on from what stands before {question}, to the end of the
    line."""
    length: int = 64
    """Most tokens of a question and of an answer; of a stretch of a document, with `ask=text`."""
    window: int = 2048
    """Most tokens of context that the teacher has before it at a time; fewer where the base has fewer positions."""
    steps: int = 64
    """Gradient steps on what is read between two questions."""
    batch: int = 8
    """Questions, or stretches of text, of one step."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, slots=self.slots, window=self.window, length=self.length)
        at_least(1, questions=self.questions, steps=self.steps, batch=self.batch)
        at_least(0, lr=self.lr, temperature=self.temperature)
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
        if self.template.count(QUESTION) != 1:
            raise ValueError(f"template must hold {QUESTION} once, got {self.template!r}")
        if self.ask == "self" and self.temperature == 0 and self.questions > 1:
            raise ValueError(f"questions must be 1 where temperature is 0 (all would be alike), got {self.questions}")


PRESETS: Mapping[str, DistillSettings] = {
    # nano phrases no questions.
    "nano": DistillSettings(ask="text", steps=16, lr=1e-2),
}


def cost(settings: DistillSettings, shape: Shape, work: Workload) -> Cost:
    """Context distillation (arXiv 2209.15189): the teacher reads, asks itself and answers; the student takes its
    steps. Questions and answers are counted at their greatest length; a context in several windows as windows of
    that size."""
    s, bare, size = settings, closed_book(shape, work), settings.length
    factors = Factors(shape, s.rank, targeted(s.targets, shape))
    if not work.pieces:
        return bare
    prefix = s.slots if s.target == "prefix" else 0
    if s.ask == "text":
        cut = [min(size, piece - begin) for piece in work.pieces for begin in range(0, piece, size)]
        lessons = [(tokens - 1, tokens) for tokens in cut if tokens > 1] or [(1, 1)]
    else:
        worded = len(s.template.replace(QUESTION, "")) // CHARACTERS_A_TOKEN
        lessons = [(worded + 2 * size - 1, size)] * (s.questions * len(work.pieces))
    window, again = min(s.window, work.tokens), replace(shape, dense=False)
    context, before = shape.starts + window, JOINT if prefix else shape.starts
    teaching = work.tokens / window * shape.forward(context)
    teaching += sum(shape.forward(JOINT + tokens, context) for tokens, _ in lessons)
    if s.ask == "self":
        writing = [again.forward(size, piece) + shape.head(size) for piece in work.pieces]
        teaching += sum(shape.forward(shape.starts + piece) for piece in work.pieces) + s.questions * sum(writing)
        teaching += sum(again.forward(tokens, context) + shape.head(size) for tokens, _ in lessons)

    def step(tokens: int, targets: int) -> int:
        if prefix:  # of keys and values in front of the tokens
            return 2 * shape.forward(before + tokens, prefix) + 3 * shape.head(targets)
        return factors.step(before + tokens, targets) + shape.head(targets)

    passes, left = divmod(s.steps, -(-len(lessons) // s.batch))
    learning = sum(step(*lesson) for lesson in lessons) * (passes + left * s.batch / len(lessons))
    floats = shape.slot_floats * prefix or factors.size
    longest = context + JOINT + max(tokens for tokens, _ in lessons)
    return replace(
        bare,
        state_floats=floats,
        state_bytes=SINGLE * floats,
        adapt_slots=longest,
        ask_slots=prefix + (work.asked if prefix else bare.ask_slots),
        adapt_flops=round(teaching + learning + (shape.forward(prefix) if prefix else 0)),
        ask_flops=answer(shape, work, prefix, begun=True)
        if prefix
        else bare.ask_flops + factors.forward(bare.positions),
        positions=max(longest, prefix + work.asked, bare.positions),
    )


def _prefix_of(amount: Amount) -> dict[str, Json]:
    """A prefix has its size before anything is read."""
    if isinstance(amount, float):
        raise ValueError("the size of a prefix is a number of tokens, whatever is read")
    return {"target": "prefix", "slots": amount}


DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA or prefix trained to answer as the base does with the context",
    where="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets=PRESETS,
    growth="constant",
    cost=cost,
    keep=_prefix_of,
    checked=DistillSettings(rank=2, slots=8, ask="text", length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
)

METHODS = (DISTILL,)
