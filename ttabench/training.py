"""One training loop for every method: episodes in, checkpoints and a loss curve out.

    mac = Mac(lm, Mac.presets["nano"])
    batches = lessons([(task.training(seed=0, documents=16), 2)], steps=2000)
    record = train(mac, batches, TrainConfig(steps=2000, lr=1e-3, out=Path("runs/mac")))

Adam (AdamW where weights decay) at a constant rate after a linear warm-up, gradients clipped by norm (the recipe of
arXiv 2403.04317; a cosine is an option). Training that was stopped goes on with `resume=True` and ends where it would
have ended: every step draws its randomness from its own seed, and the stream of episodes is advanced to where it stood.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ttabench.errors import UserError
from ttabench.methods import checkpoints
from ttabench.methods.base import BaseMethod
from ttabench.types import Episode, Json

OPTIMISER, PROGRESS = "optimiser.safetensors", "training.json"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how fast to train."""

    steps: int
    """Optimiser steps in all, those before a resume included."""
    lr: float = 1e-4
    warmup: int = 0
    """Steps of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "constant"
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    clip: float = 100.0
    """Largest norm of the gradient of all parameters together."""
    decay: float = 0.0
    """Weight decay, decoupled from the gradient: AdamW; 0 is Adam."""
    seed: int = 0
    save_every: int = 0
    """Steps between checkpoints; 0 saves only at the end."""
    out: Path | None = None
    """Folder of the checkpoint; None keeps the result in memory."""
    resume: bool = False
    """Go on from the checkpoint in `out`."""
    fresh: bool = True
    """Begin with the method's own starting weights; False trains the parameters as they are (fine-tuning)."""
    data: Mapping[str, Json] = field(default_factory=dict)
    """What the batches are drawn from, for the record of the checkpoint."""
    dtype: checkpoints.Stored = "float32"
    """Number format of the stored parameters. Resuming needs float32."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.lr <= 0 or self.clip <= 0:
            raise ValueError(f"lr and clip must be positive, got {self.lr} and {self.clip}")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2 must lie in [0, 1), got {self.beta2}")
        if self.decay < 0:
            raise ValueError(f"decay must be at least 0, got {self.decay}")
        if self.resume and self.out is None:
            raise ValueError("resume needs out")


@dataclass(kw_only=True)
class TrainRecord:
    """What happened so far; written to `training.json` and into the checkpoint's header."""

    steps: int = 0
    seconds: float = 0.0
    observes: int = 0
    """Pieces of context read."""
    asks: int = 0
    """Queries asked."""
    losses: list[float] = field(default_factory=list)
    """Loss of every step."""

    def note(self, batch: Sequence[Episode], loss: float, seconds: float) -> None:
        """Count one more step."""
        self.steps += 1
        self.seconds += seconds
        self.observes += sum(len(episode.observes()) for episode in batch)
        self.asks += sum(len(episode.asks()) for episode in batch)
        self.losses.append(loss)

    def summary(self, config: TrainConfig, points: int = 100) -> dict[str, Json]:
        """The record with its configuration as JSON; the curve is thinned to at most `points` means."""
        width = max(1, math.ceil(len(self.losses) / points))
        parts = [self.losses[start : start + width] for start in range(0, len(self.losses), width)]
        told = {key: value for key, value in asdict(config).items() if key not in ("out", "resume")}
        means = [round(sum(part) / len(part), 4) for part in parts]
        return {**asdict(self), "losses": means, "steps_per_loss": width, "config": told}


OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]


def train(
    method: BaseMethod[Any], batches: Iterable[Sequence[Episode]], config: TrainConfig, on_step: OnStep | None = None
) -> TrainRecord:
    """Train a method in place and leave it ready for use.

    Args:
        method: a trainable method.
        batches: the episodes of each step; long enough, and the same from its start at every call (see `lessons`).
        config: how.
        on_step: called after every step with its number (from 1), the named parts of the loss, their sum ("loss"), the
            norm of the gradient before clipping ("gradient") and the learning rate ("lr").

    Raises:
        UserError: the method has no parameters, the stream ends early, the loss is not finite, `out` cannot be used.
    """
    modules = method.modules()
    optimiser = torch.optim.AdamW(
        _parameters(method), lr=config.lr, betas=(0.9, config.beta2), weight_decay=config.decay
    )
    record = _resumed(method, optimiser, config) if config.resume else TrainRecord()
    if config.fresh and not record.steps:
        method.prepare_training()
    stream = islice(iter(batches), record.steps, None)
    modules.train()
    try:
        while record.steps < config.steps:
            started, step = time.perf_counter(), record.steps + 1
            batch = _draw(stream, step)
            parts = _step(method, optimiser, batch, config, step)
            record.note(batch, parts["loss"], time.perf_counter() - started)
            if on_step is not None:
                on_step(step, parts)
            if config.out and (step == config.steps or (config.save_every and step % config.save_every == 0)):
                _save(method, optimiser, record, config)
    finally:
        modules.eval()
    return record


def lessons(streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1) -> Iterator[list[Episode]]:
    """Batches of a curriculum: the steps are shared out evenly among the lessons, one after the other.

    Args:
        streams: for each lesson its episodes, and how many of them a step takes.
        steps: of the whole training.
        rounds: how often all lessons come in turn; with many they are mixed, not one before the other. Where steps are
            too few for so many, every step is the next lesson.
    """
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))


def rate(config: TrainConfig, step: int) -> float:
    """Learning rate of a step, counted from 1."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def _parameters(method: BaseMethod[Any]) -> list[torch.nn.Parameter]:
    parameters = list(method.modules().parameters())
    if not parameters:
        raise UserError(f"Method {method.name} has no parameters to train.", "Choose a trainable method.")
    return parameters


def _draw(stream: Iterator[Sequence[Episode]], step: int) -> Sequence[Episode]:
    batch = next(stream, ())
    if not batch:
        raise UserError(f"The training episodes end before step {step}.", "Train fewer steps or on more data.")
    return batch


def _step(
    method: BaseMethod[Any], optimiser: torch.optim.AdamW, batch: Sequence[Episode], config: TrainConfig, step: int
) -> dict[str, float]:
    """One update; randomness (dropout, subsets) depends on the seed and the step alone."""
    devices = [method.lm.device] if method.lm.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.seed * 1_000_003 + step)
        parts = method.loss_parts(batch)
        loss = torch.stack(list(parts.values())).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
    value = loss.item()
    if not math.isfinite(value):
        raise UserError(f"The loss of step {step} is {value}.", "Lower the learning rate, or clip more.")
    norm = torch.nn.utils.clip_grad_norm_(_parameters(method), config.clip)
    for group in optimiser.param_groups:
        group["lr"] = rate(config, step)
    optimiser.step()
    told = {name: part.item() for name, part in parts.items()}
    return {**told, "loss": value, "gradient": norm.item(), "lr": rate(config, step)}


def _save(method: BaseMethod[Any], optimiser: torch.optim.AdamW, record: TrainRecord, config: TrainConfig) -> None:
    """The checkpoint; with `save_every` also what a resumed training needs."""
    assert config.out is not None
    checkpoints.save(method, config.out, record.summary(config), config.dtype)
    if not config.save_every:
        return
    tensors: dict[str, Tensor] = {}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"{index}.{name}": value.cpu().contiguous() for name, value in state.items()}
    save_file(tensors, config.out / f"{OPTIMISER}.part")
    (config.out / f"{OPTIMISER}.part").replace(config.out / OPTIMISER)
    (config.out / f"{PROGRESS}.part").write_text(json.dumps(asdict(record)), encoding="utf-8")
    (config.out / f"{PROGRESS}.part").replace(config.out / PROGRESS)


def _resumed(method: BaseMethod[Any], optimiser: torch.optim.AdamW, config: TrainConfig) -> TrainRecord:
    """Parameters, optimiser and record as `_save` left them; a fresh record where nothing was saved yet."""
    assert config.out is not None
    if not (config.out / PROGRESS).exists():
        return TrainRecord()
    stored = checkpoints.load(type(method), method.lm, config.out)
    if stored.settings != method.settings:
        raise UserError(f"{config.out} was trained with other settings.", "Use the same --set, or another --out.")
    method.modules().load_state_dict(stored.modules().state_dict())
    try:
        record = TrainRecord(**json.loads((config.out / PROGRESS).read_text(encoding="utf-8")))
        tensors = load_file(config.out / OPTIMISER)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        what = f"The training state in {config.out} is damaged: {error}."
        raise UserError(what, "Train again without --resume.") from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return record
