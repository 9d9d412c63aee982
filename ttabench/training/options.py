"""How `ttabench train` works, whatever the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ttabench.core.declared import HOW, RECIPE, WHAT, Declared


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Batches, saves and validations of a training, and how its checkpoint is stored."""

    accumulate: Annotated[
        int,
        Declared("Micro-batches of a step: so many times --batch-documents, in the memory of one batch.", RECIPE),
    ] = 1
    also: Annotated[
        tuple[str, ...],
        Declared("A further task to train on, NAME or NAME=SOURCE, with options of it behind a blank each: all take "
                 "turns, a step each. Repeat for more.",
                 RECIPE, default=False),
    ] = ()  # fmt: skip
    seed: Annotated[int, Declared("Seed of data order and of everything random.", WHAT)] = 0
    best: Annotated[bool, Declared("Keep the weights of the lowest validation loss, not the last.", RECIPE)] = False
    save_every: Annotated[int, Declared("Steps between checkpoints; 0: at the end only.", HOW)] = 500
    validate_every: Annotated[
        int, Declared("Steps between validations on the task's validation split; 0: none.", HOW)
    ] = 100
    stored: Annotated[str, Declared("Stored number format: float32, float16 or bfloat16 (half the size).", HOW)] = (
        "float32"
    )
    """Number format of the stored parameters."""
    resume: bool = True
    """Resume from what is saved, if anything is; False starts again."""
