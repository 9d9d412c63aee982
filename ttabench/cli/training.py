"""`ttabench train` as it is typed; `train` does what was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttabench.cli import options as o
from ttabench.cli import training_options as of_training
from ttabench.cli.declaring import takes
from ttabench.cli.ending import bounded
from ttabench.core.progress import say_loading
from ttabench.methods.recipe import Recipe
from ttabench.run.request import RunRequest


@takes("request", RunRequest, without=("checkpoint", "state", "limit", "ask_only", "batch_size"),
       method="mac", task="streamingqa", split="train")  # fmt: skip
@takes("changes", Recipe, said=True)
@takes("training", of_training.Training)
def train(
    request: RunRequest,
    changes: Mapping[str, Any],
    training: of_training.Training,
    checkpoint: of_training.TrainFrom = "none",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    out: of_training.TrainOut = None,
    resume: of_training.Resume = False,  # noqa: ARG001  # what it asks for is done anyway
    force: of_training.Overwrite = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a method on a task and write a checkpoint that `eval --checkpoint` takes; the same command resumes."""
    say_loading(request.base_name, json or quiet)
    from ttabench.cli import commands
    from ttabench.cli import train as train_command

    bounded(threads, memory_limit, request.device)
    storing, showing = commands.Storing(out=out, force=force), commands.Showing(json=json, quiet=quiet)
    request = replace(request, checkpoint=checkpoint)
    train_command.train(request, changes, replace(training, resume=not force), storing, showing)
