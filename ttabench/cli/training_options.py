"""Options of `train` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.cli.options import HOW, RUN

RECIPE = "Recipe (defaults: those of the preset)"

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
Steps = Annotated[int | None, typer.Option(help="Optimiser steps in all.", rich_help_panel=RECIPE)]
Lr = Annotated[float | None, typer.Option(help="Learning rate after the warm-up.", rich_help_panel=RECIPE)]
Warmup = Annotated[int | None, typer.Option(help="Steps of linear warm-up.", rich_help_panel=RECIPE)]
Schedule = Annotated[str, typer.Option(help="constant or cosine.", show_default=False, rich_help_panel=RECIPE)]
Optimizer = Annotated[
    str, typer.Option(help="adam, or muon (matrices; adam for the rest).", show_default=False, rich_help_panel=RECIPE)
]
Beta2 = Annotated[float | None, typer.Option(help="Adam's decay of squared gradients.", rich_help_panel=RECIPE)]
Clip = Annotated[float | None, typer.Option(help="Largest norm of the gradient.", rich_help_panel=RECIPE)]
Decay = Annotated[float | None, typer.Option(help="Weight decay (AdamW).", rich_help_panel=RECIPE)]
Also = Annotated[
    list[str] | None,
    typer.Option("--also", help="A further task to train on, NAME or NAME=SOURCE: all take turns, a step each. Repeat "
                 "for more.", show_default=False, rich_help_panel=RECIPE),
]  # fmt: skip
Documents = Annotated[
    str,
    typer.Option(help="Pieces of context in a training episode; of 8,16,32 each gets an equal part of the steps.",
                 show_default=False, rich_help_panel=RECIPE),
]  # fmt: skip
Rounds = Annotated[
    int | None,
    typer.Option(help="How many times the steps go through the list of --documents.", show_default=False,
                 rich_help_panel=RECIPE),
]  # fmt: skip
Questions = Annotated[int | None, typer.Option(help="Queries about each piece.", rich_help_panel=RECIPE)]
BatchDocuments = Annotated[
    int | None,
    typer.Option(help="Pieces in one step, over several episodes; 0: one episode a step.", rich_help_panel=RECIPE),
]
SaveEvery = Annotated[int, typer.Option(help="Steps between checkpoints; 0: at the end only.", rich_help_panel=HOW)]
Stored = Annotated[
    str, typer.Option(help="Stored number format: float32, float16 or bfloat16 (half the size).", rich_help_panel=HOW)
]
ValidateEvery = Annotated[
    int,
    typer.Option(help="Steps between validations on the task's validation split; 0: none.", rich_help_panel=HOW),
]
Accumulate = Annotated[
    int,
    typer.Option(help="Micro-batches of a step: so many times --batch-documents, in the memory of one batch.",
                 rich_help_panel=RECIPE),
]  # fmt: skip
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume from the last save in --out; this is the default.", rich_help_panel=HOW)
]
Overwrite = Annotated[
    bool, typer.Option("--force", help="Start again in --out, without what is saved there.", rich_help_panel=HOW)
]
