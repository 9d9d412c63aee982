"""`ttabench train`: train the parameters of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from ttabench.cli import options as o
from ttabench.cli.errors import apply_resource_limits
from ttabench.core.declared import EXECUTION_GROUP, RUN_GROUP
from ttabench.methods.spec import Recipe
from ttabench.run.request import RunRequest
from ttabench.terminal import render
from ttabench.training.config import TrainOptions


@o.add_options(
    "request",
    RunRequest,
    only=o.RUN_OPTIONS["train"],
    method="mac",
    task="streamingqa",
    split="train",
)
@o.add_options("changes", Recipe, typed_only=True)
@o.add_options("training", TrainOptions)
def train(
    request: RunRequest,
    changes: Mapping[str, Any],
    training: TrainOptions,
    checkpoint: Annotated[
        str,
        o.option(
            RUN_GROUP,
            "Trained adapter to start from: a folder, or shipped:NAME. (default: none)",
            show_default=False,
        ),
    ] = "none",
    threads: o.Threads = None,
    memory_limit: o.MemoryLimit = "",
    tracker: o.Tracker = "",
    out: Annotated[
        Path | None,
        o.folder(
            EXECUTION_GROUP,
            "Folder of the checkpoint. (default: results/scratch/checkpoints/METHOD-TASK-MODEL)",
            "--out",
            "-o",
        ),
    ] = None,
    force: Annotated[
        bool,
        o.option(EXECUTION_GROUP, "Start over, ignoring a checkpoint saved in --out.", "--force"),
    ] = False,
    dry_run: Annotated[
        bool, o.option(EXECUTION_GROUP, "Print the estimated cost, and train nothing.", "--dry-run")
    ] = False,
    json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a method on a task and write a checkpoint for `eval --checkpoint`.

    Repeating a command resumes an interrupted training.
    """
    from ttabench.methods.registry import find_method
    from ttabench.run.tracking import open_tracker
    from ttabench.training.stages import plan_training

    apply_resource_limits(threads, memory_limit, request.device)
    is_verbose = not (json or quiet)
    request = replace(request, checkpoint=checkpoint)
    if out is None:
        name = f"{find_method(request.method).name}-{Path(request.task).stem}-{Path(request.base_name).name}"
        out = o.DEFAULT_OUT / "checkpoints" / name
    plan = plan_training(
        request, changes, replace(training, resume=not force), out, render.print_note
    )
    if dry_run:
        from ttabench.profiling.analytic import training_table

        render.print_tables(
            [training_table(plan, plan.stages[0].plans[0].config.dtype)],
            "json" if json else "table",
        )
        return
    last_stage = plan.stages[-1]
    config = {**last_stage.plans[0].config.to_json(), **last_stage.config.recipe()}
    with open_tracker(tracker, out.name, config) as log_metrics:
        record = plan.run(lambda: render.show_progress(is_verbose), log_metrics)
        for values in record.validation:
            log_metrics(
                {
                    f"validation_{key}" if key != "step" else key: value
                    for key, value in values.items()
                }
            )
    figures = {
        "steps": record.steps,
        "loss": record.losses[-1],
        "seconds": record.seconds,
        "folder": str(out),
    }
    last = record.validation[-1] if record.validation else {}
    figures |= {f"validation_{name}": value for name, value in last.items() if name != "step"}
    source = f" --source {quote(request.source)}" if request.source else ""
    task = plan.stages[-1].plans[0].request.task  # the first task of a mixture
    base_options = f"--task {task}{source} {request.base_model_options}"
    arguments = f"--method {quote(request.method)} {base_options} --checkpoint {out}"
    o.show_result("trained", figures, f"Next: ttabench eval {arguments}", json=json, quiet=quiet)
