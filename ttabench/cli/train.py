"""`ttabench train`: what can be typed, how far a training is, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.declaring import takes
from ttabench.cli.ending import bounded
from ttabench.core.declared import HOW, RUN
from ttabench.core.progress import say_loading
from ttabench.methods.recipe import Recipe
from ttabench.run.request import RunRequest
from ttabench.training.options import TrainOptions

if TYPE_CHECKING:
    from ttabench.training.config import TrainRecord

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


@takes("request", RunRequest, without=("checkpoint", "state", "limit", "ask_only", "batch_size"),
       method="mac", task="streamingqa", split="train")  # fmt: skip
@takes("changes", Recipe, typed_only=True)
@takes("training", TrainOptions)
def train(
    request: RunRequest,
    changes: Mapping[str, Any],
    training: TrainOptions,
    checkpoint: TrainFrom = "none",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    out: TrainOut = None,
    resume: Resume = False,  # noqa: ARG001  # what it asks for is done anyway
    force: Overwrite = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a method on a task and write a checkpoint that `eval --checkpoint` takes; the same command resumes."""
    say_loading(request.base_name, json or quiet)
    from ttabench.cli.showing import Showing, show_result
    from ttabench.run.resolve import resolve_method
    from ttabench.terminal import render
    from ttabench.training.stages import plan_training

    bounded(threads, memory_limit, request.device)
    showing = Showing(json=json, quiet=quiet)
    request = replace(request, checkpoint=checkpoint)
    if out is None:
        name = f"{resolve_method(request).spec.name}-{Path(request.task).stem}-{Path(request.base_name).name}"
        out = o.DEFAULT_OUT / "checkpoints" / name
    plan = plan_training(request, changes, replace(training, resume=not force), out, render.remark)
    record = plan.run(lambda: render.progress(showing.talking))
    show_result("trained", _figures(record, out), showing, f"Try it: {_evaluation(request)} --checkpoint {out}")
    if record.steps < plan.recipe_steps and showing.talking:
        short = f"{record.steps:,} steps of the {plan.recipe_steps:,} of its recipe: too few to judge the method by"
        render.remark(f"Note: {short}.")


def _figures(record: TrainRecord, out: Path) -> dict[str, Any]:
    """Steps, loss and seconds of a training, with the figures of its last validation."""
    figures = {"steps": record.steps, "loss": record.losses[-1], "seconds": record.seconds, "folder": str(out)}
    last = record.validation[-1] if record.validation else {}
    return figures | {f"validation_{name}": value for name, value in last.items() if name != "step"}


def _evaluation(request: RunRequest) -> str:
    """The command that evaluates what was trained, but for its checkpoint."""
    source = f" --source {quote(request.source)}" if request.source else ""
    return f"ttabench eval --method {quote(request.method)} --task {request.task}{source} {request.base_words}"
