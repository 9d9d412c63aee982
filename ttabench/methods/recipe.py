"""How a method is trained where `ttabench train` is told no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ttabench.core.declared import RECIPE, Declared


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method is trained: `ttabench train` with no more said. A method's presets may have their own."""

    documents: Annotated[
        tuple[int, ...],
        Declared("Pieces of context in a training episode; of 8,16,32 each gets an equal part of the steps.", RECIPE,
                 kind=str, default=False),
    ] = (16,)  # fmt: skip
    rounds: Annotated[
        int, Declared("How many times the steps go through the list of --documents.", RECIPE, default=False)
    ] = 1
    questions: Annotated[int, Declared("Queries about each piece.", RECIPE)] = 1
    batch_documents: Annotated[
        int, Declared("Pieces in one step, over several episodes; 0: one episode a step.", RECIPE)
    ] = 0
    steps: Annotated[int, Declared("Optimiser steps in all.", RECIPE)] = 1000
    lr: Annotated[float, Declared("Learning rate after the warm-up.", RECIPE)] = 1e-4
    warmup: Annotated[int, Declared("Steps of linear warm-up.", RECIPE)] = 0
    schedule: Annotated[str, Declared("constant or cosine.", RECIPE, default=False)] = "constant"
    optimizer: Annotated[str, Declared("adam, or muon (matrices; adam for the rest).", RECIPE, default=False)] = "adam"
    beta2: Annotated[float, Declared("Adam's decay of squared gradients.", RECIPE)] = 0.999
    clip: Annotated[float, Declared("Largest norm of the gradient.", RECIPE)] = 100.0
    decay: Annotated[float, Declared("Weight decay (AdamW).", RECIPE)] = 0.0
    first: Stage | None = None
    """What is trained before, unless there is a checkpoint to begin from or that the base stands on: another method,
    which is added to the base model's weights, or the method itself, whose parameters are trained on."""

    def episodes(self, documents: int) -> int:
        """Episodes of a step whose episodes hold so many documents."""
        return max(1, self.batch_documents // documents)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An earlier stage of a training, on the same task; its recipe may have a `first`."""

    method: str = "lora"
    """One that reads nothing, or the method that is trained."""
    settings: tuple[str, ...] = ()
    """Settings as they are typed, `rank=8`; of the method itself those that differ from the later stage's."""
    task_options: tuple[str, ...] = ()
    """Options of the task beside those that were typed, `ratio=1.0`."""
    recipe: Recipe = field(default_factory=Recipe)
