"""Context distillation: a student without the context learns what the base says with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ttabench.core.amounts import CHARACTERS_A_TOKEN
from ttabench.core.bounds import at_least
from ttabench.cost.load import SINGLE, Cost, Workload, closed_book
from ttabench.cost.shape import Factors, Shape, targeted
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
    """Rank of each delta."""
    alpha: float = 16.0
    """Deltas are scaled by alpha / rank."""
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
        at_least(2, window=self.window, length=self.length)
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
    if s.ask == "text":
        cut = [min(size, piece - begin) for piece in work.pieces for begin in range(0, piece, size)]
        lessons = [(tokens - 1, tokens) for tokens in cut if tokens > 1] or [(1, 1)]
    else:
        worded = len(s.template.replace(QUESTION, "")) // CHARACTERS_A_TOKEN
        lessons = [(worded + 2 * size - 1, size)] * (s.questions * len(work.pieces))
    window, again = min(s.window, work.tokens), replace(shape, dense=False)
    context = shape.starts + window
    teaching = work.tokens / window * shape.forward(context)
    teaching += sum(shape.forward(JOINT + tokens, context) for tokens, _ in lessons)
    if s.ask == "self":
        writing = [again.forward(size, piece) + shape.head(size) for piece in work.pieces]
        teaching += sum(shape.forward(shape.starts + piece) for piece in work.pieces) + s.questions * sum(writing)
        teaching += sum(again.forward(tokens, context) + shape.head(size) for tokens, _ in lessons)
    steps = [factors.step(shape.starts + tokens, targets) + shape.head(targets) for tokens, targets in lessons]
    passes, left = divmod(s.steps, -(-len(lessons) // s.batch))
    learning = sum(steps) * (passes + left * s.batch / len(lessons))
    longest = context + JOINT + max(tokens for tokens, _ in lessons)
    return replace(
        bare,
        state_floats=factors.size,
        state_bytes=SINGLE * factors.size,
        adapt_slots=longest,
        adapt_flops=round(teaching + learning),
        ask_flops=bare.ask_flops + factors.forward(bare.positions),
        positions=max(longest, bare.positions),
    )


DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA trained to answer as the base does with the context",
    where="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets=PRESETS,
    growth="constant",
    cost=cost,
    checked=DistillSettings(rank=2, ask="text", length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
    retired={"target": "lora", "slots": 64},
)

METHODS = (DISTILL,)
