"""A training by names: `ttabench.train("lora", "superglue", out="mine")`, for a few lines of Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from ttabench.core.errors import UnknownName
from ttabench.core.typed import as_typed
from ttabench.methods.recipe import Recipe
from ttabench.run.request import RunRequest
from ttabench.training.config import TrainOptions, TrainRecord
from ttabench.training.stages import plan_training


def train(
    method: str,
    task: str = "streamingqa",
    *,
    out: str | Path,
    model: str = "nano",
    source: str = "",
    checkpoint: str = "none",
    base_checkpoint: str = "",
    preset: str = "",
    settings: Mapping[str, object] | None = None,
    task_options: Mapping[str, object] | None = None,
    device: str = "auto",
    options: TrainOptions | None = None,
    **recipe: object,
) -> TrainRecord:
    """Train a method on a task as `ttabench train` does, all stages of its recipe; the same call resumes.

    Arguments are named as the command's options are. `settings` and `task_options` are those that differ from preset
    and card, `recipe` fields of `Recipe` that differ from the preset's: `steps=500`, `documents=(8, 16)`, `lr=1e-3`.

    Raises:
        UserError: an unknown name, a setting that does not fit, data or model that are not there, a folder in use, a
            loss that is not finite; one line that says what to do.
    """
    known = [field.name for field in fields(Recipe)]
    for name in recipe:
        if name not in known:
            raise UnknownName("field of a recipe", name, known)
    request = RunRequest(
        method=method,
        task=task,
        split="train",
        model=model,
        source=source,
        checkpoint=checkpoint,
        base_checkpoint=base_checkpoint,
        preset=preset,
        settings=_assigned(settings),
        task_options=_assigned(task_options),
        device=device,
    )
    if isinstance(documents := recipe.get("documents"), int):
        recipe["documents"] = (documents,)
    return plan_training(request, recipe, options or TrainOptions(), Path(out)).run()


def _assigned(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Values by name, as they are typed."""
    return tuple(f"{key}={as_typed(value)}" for key, value in (values or {}).items())
