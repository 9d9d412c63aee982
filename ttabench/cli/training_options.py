"""Options of `train` alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ttabench.core.declared import HOW, RECIPE, RUN, WHAT, Declared

TrainFrom = Annotated[
    str,
    typer.Option("--checkpoint", help="Trained adapter to start from: a folder, or shipped:NAME. (default: none)",
                 show_default=False, rich_help_panel=RUN),
]  # fmt: skip
TrainOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder of the checkpoint. (default: results/scratch/checkpoints/...)",
                 show_default=False, rich_help_panel=HOW),
]  # fmt: skip
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume from the last save in --out; this is the default.", rich_help_panel=HOW)
]
Overwrite = Annotated[
    bool, typer.Option("--force", help="Start again in --out, without what is saved there.", rich_help_panel=HOW)
]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How `ttabench train` works, whatever the recipe."""

    accumulate: Annotated[
        int,
        Declared("Micro-batches of a step: so many times --batch-documents, in the memory of one batch.", RECIPE),
    ] = 1
    also: Annotated[
        tuple[str, ...],
        Declared("A further task to train on, NAME or NAME=SOURCE: all take turns, a step each. Repeat for more.",
                 RECIPE, default=False),
    ] = ()  # fmt: skip
    seed: Annotated[int, Declared("Seed of data order and of everything random.", WHAT)] = 0
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
