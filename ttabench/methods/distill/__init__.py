"""Context distillation: a student without the context learns what the base says with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttabench.core.errors import at_least
from ttabench.methods.parts.settings import LoraShape
from ttabench.methods.spec import MethodSpec


@dataclass(frozen=True, kw_only=True)
class DistillSettings(LoraShape):
    """Settings of `distill`; the learning rate is chosen on validation data."""

    rank: int = 16
    alpha: float = 16.0
    ask: Literal["text"] = "text"
    """What the student is trained on: the documents, which the teacher reads once more behind the context. Earlier
    versions had another default, so that ids of runs hold it."""
    length: int = 64
    """Most tokens of a stretch of a document."""
    window: int = 2048
    """Most tokens of context that the teacher has before it at a time; fewer where the base has fewer positions."""
    steps: int = 64
    """Gradient steps on what is read between two questions."""
    batch: int = 8
    """Stretches of text of one step."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, window=self.window, length=self.length)
        at_least(1, steps=self.steps, batch=self.batch)
        at_least(0, lr=self.lr)
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


DISTILL = MethodSpec(
    name="distill",
    summary="a LoRA trained to answer as the base does with the context",
    where="ttabench.methods.distill.method:Distill",
    Settings=DistillSettings,
    presets={"nano": DistillSettings(steps=16, lr=1e-2)},
    growth="constant",
    checked=DistillSettings(rank=2, length=32, steps=4, batch=2, lr=1e-2),
    paper="2209.15189",
    retired={
        "target": "lora",
        "slots": 64,
        "ask": "self",
        "questions": 4,
        "temperature": 1.0,
        "template": "Question: {question}\nAnswer:",
    },
)
METHODS = (DISTILL,)
