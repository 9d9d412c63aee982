"""Options of a training, the configuration of its loop, and the record of its progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from ttabench.core.declared import EXECUTION_GROUP, QUERY_GROUP, RECIPE_GROUP, OptionInfo
from ttabench.core.errors import UserError, require_at_least, require_at_most
from ttabench.core.types import Episode, Json
from ttabench.methods.spec import Recipe

CHOICES = {
    "schedule": ("constant", "cosine"),
    "optimizer": ("adam", "muon"),
    "stored": ("float32", "float16", "bfloat16"),
}
MAX_STEPS, MAX_STEP_CHUNKS = 10**9, 2**16
"""Maximum steps of a training, and chunks in one step."""
RECORDED_RECIPE_FIELDS = ("documents", "rounds", "questions", "batch_documents")
"""Fields of a recipe in the record of the data."""
UNRECORDED_FIELDS = ("out", "resume", "also", "first", *RECORDED_RECIPE_FIELDS)
"""Fields that a checkpoint's record stores under `data`, or not at all."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Tasks, saves and validations of a training, and the number format of its checkpoint."""

    also: Annotated[
        tuple[str, ...],
        OptionInfo(
            "A further task to train on: 'NAME=SOURCE OPTION=VALUE ...'; source and options are "
            "optional. Tasks take turns, one step each. Repeat for more.",
            RECIPE_GROUP,
            default=False,
        ),
    ] = ()
    seed: Annotated[
        int, OptionInfo("Seed of the data order and of all randomness.", QUERY_GROUP)
    ] = 0
    best: Annotated[
        bool,
        OptionInfo("Keep the weights with the lowest validation loss, not the last.", RECIPE_GROUP),
    ] = False
    save_every: Annotated[
        int, OptionInfo("Steps between checkpoints; 0: only at the end.", EXECUTION_GROUP)
    ] = 100
    validate_every: Annotated[
        int,
        OptionInfo("Steps between validations on the validation split; 0: none.", EXECUTION_GROUP),
    ] = 100
    stored: Annotated[
        str,
        OptionInfo(
            "Number format of the checkpoint: float32, float16 or bfloat16 (half the size).",
            EXECUTION_GROUP,
        ),
    ] = "float32"
    recompute: Annotated[
        bool, OptionInfo("Gradient checkpointing: slower, less memory.", EXECUTION_GROUP)
    ] = False
    resume: bool = True
    """True if training resumes from a save, if there is one; False starts again."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Recipe, TrainOptions):
    """Configuration of the training loop: recipe, options, output folder, and origin of the data.

    The batches already reflect a recipe's documents, questions and earlier stages.
    """

    save_every: int = 0
    validate_every: int = 0
    resume: bool = False
    out: Path | None = None
    """Folder of the checkpoint; None keeps the result in memory."""
    fresh: bool = True
    """True to begin with the method's initial weights; False to continue from its current
    parameters (fine-tuning).
    """
    data: Mapping[str, Json] = field(default_factory=dict)
    """Origin of the batches, for the record of the checkpoint."""
    stands_on: Mapping[str, Json] = field(default_factory=dict)
    """Checkpoint in the base model during this training: its `name` and `digest`."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)}"
                )
        require_at_least(1, steps=self.steps)
        counts = {name: getattr(self, name) for name in ("validate_every", "save_every", "warmup")}
        require_at_least(0, batch_documents=self.batch_documents, **counts)
        require_at_most(MAX_STEPS, steps=self.steps, rounds=self.rounds, **counts)
        require_at_most(MAX_STEP_CHUNKS, batch_documents=self.batch_documents)
        for name in ("lr", "clip", "decay", "beta2"):
            value = getattr(self, name)
            if not (0 < value < math.inf or (value == 0 and name in ("decay", "beta2"))):
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.beta2 >= 1:
            raise ValueError(f"beta2 must lie in [0, 1), got {self.beta2}")
        if self.best and not self.validate_every:
            raise ValueError("best needs validate_every")
        assert not self.resume or self.out is not None, "resume needs out"

    def recipe(self) -> dict[str, Json]:
        """Return the values that a resumed training must share with the interrupted one."""
        names = "lr warmup schedule optimizer beta2 clip decay seed fresh best".split()
        names += ["steps"] if self.schedule == "cosine" else []
        return {name: getattr(self, name) for name in names}


@dataclass(kw_only=True)
class TrainRecord:
    """Record of a training so far, stored in every save and in the checkpoint's header."""

    steps: int = 0
    seconds: float = 0.0
    """Duration of the steps, without validation and saves."""
    tokens: int = 0
    """Tokens of all chunks, queries and answers."""
    observes: int = 0
    """Number of chunks read."""
    asks: int = 0
    """Number of queries."""
    losses: list[float] = field(default_factory=list)
    """Loss of every step."""
    validation: list[dict[str, int | float]] = field(default_factory=list)
    """Metrics of every validation, with its `step`."""

    def count_step(
        self, batch: Sequence[Episode], tokens: int, loss: float, seconds: float
    ) -> None:
        """Count one more step."""
        self.steps += 1
        self.seconds += seconds
        self.tokens += tokens
        self.observes += sum(len(episode.chunks()) for episode in batch)
        self.asks += sum(len(episode.queries()) for episode in batch)
        self.losses.append(loss)

    def best(self) -> int | None:
        """Return the first step with the lowest validation loss; None before any validation."""
        if not self.validation:
            return None
        return int(min(self.validation, key=lambda metrics: metrics["loss"])["step"])

    def summary(self, config: TrainConfig, points: int = 100) -> dict[str, Json]:
        """Return record and configuration as JSON; the loss curve is reduced to at most `points`
        means.
        """
        width = max(1, math.ceil(len(self.losses) / points))
        parts = [self.losses[start : start + width] for start in range(0, len(self.losses), width)]
        settings = {
            key: value for key, value in asdict(config).items() if key not in UNRECORDED_FIELDS
        }
        means = [round(sum(part) / len(part), 4) for part in parts]
        return {**asdict(self), "losses": means, "steps_per_loss": width, "config": settings}


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 1."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def untrainable_error(name: str) -> UserError:
    """Return the error for a method without parameters."""
    return UserError(f"Method {name} has no parameters to train.", "Choose a trainable method.")
