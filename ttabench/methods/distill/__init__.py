"""Context distillation: a student without the context learns what the base says with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.methods.parts.lora_shape import LoraShape
from ttabench.methods.spec import MethodSpec

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


DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA trained to answer as the base does with the context",
    where="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets=PRESETS,
    growth="constant",
    checked=DistillSettings(rank=2, ask="text", length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
    retired={"target": "lora", "slots": 64},
)

METHODS = (DISTILL,)
