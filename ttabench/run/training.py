"""One training loop for every method: episodes in, checkpoints and a loss curve out.

    mac = Mac(lm, Mac.presets["nano"])
    batches = lessons([(task.training(seed=0, documents=16), 2)], steps=2000)
    record = train(mac, batches, TrainConfig(steps=2000, lr=1e-3, out=Path("runs/mac")))

Adam (AdamW where weights decay), gradients clipped by norm (the recipe of arXiv 2403.04317; a cosine is an option).
Training that was stopped goes on with `resume=True` and ends where it would have ended: every step draws its randomness
from its own seed, the stream of episodes is advanced to where it stood, and what a method carries is saved (`saves`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Json
from ttabench.lm.model import LM
from ttabench.lm.tokens import gold_ids, piece_ids, prompt_ids
from ttabench.methods import checkpoints
from ttabench.methods.base import BaseMethod
from ttabench.methods.trainable import Trainable
from ttabench.records.partial import typed
from ttabench.run import saves
from ttabench.run.training_config import Curve, TrainConfig, TrainRecord, lessons, rate

__all__ = ["OnStep", "TrainConfig", "TrainRecord", "lessons", "rate", "train"]

ROOM = 8
"""Saves take up to so many times the parameters in float32: parameters and two moments, old beside new, and two
checkpoints."""


OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]


def train(
    method: BaseMethod[Any],
    batches: Iterable[Sequence[Episode]],
    config: TrainConfig,
    on_step: OnStep | None = None,
    validation: Sequence[Episode] = (),
) -> TrainRecord:
    """Train a method in place and leave it ready for use.

    Args:
        method: a trainable method.
        batches: the episodes of each step; long enough, and the same from its start at every call (see `lessons`).
        config: how.
        on_step: called after every step with its number (from 1), the named parts of the loss, their sum ("loss"), the
            norm of the gradient before clipping ("gradient"), the learning rate ("lr") and "tokens_per_second".
        validation: episodes that are judged every `config.validate_every` steps.

    Raises:
        UserError: the method has no parameters, the stream ends early, the loss is not finite, `out` cannot be used,
            is in use, or holds another training.
    """
    if not isinstance(method, Trainable):
        raise _untrainable(method)
    size = sum(parameter.numel() for parameter in _parameters(method))
    with saves.locked(config.out, 4 * ROOM * size) if config.out else nullcontext():
        return _Training(method, config).run(batches, on_step, validation)


class _Training:
    """A training under way: the method, its optimiser, and what happened so far.

    `whole` is false while an update is made; what was carried, parameters and record do not fit together then.
    """

    def __init__(self, method: Trainable[Any], config: TrainConfig) -> None:
        self.method, self.config = method, config
        self.devices = [method.lm.device] if method.lm.device.type == "cuda" else []
        self.optimiser = torch.optim.AdamW(
            _parameters(method), lr=config.lr, betas=(0.9, config.beta2), weight_decay=config.decay
        )
        self.record, self.whole = TrainRecord(), True
        if config.out is not None:
            self._begin(config.out)
        self.curve = Curve(config.out, self.record.steps)

    def _begin(self, out: Path) -> None:
        if not self.config.resume:
            saves.discard(out)
            return
        saves.check(out, resume=True)
        if (found := saves.read(out)) is not None:
            try:
                self._go_on(out, *found)
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
                raise saves.damaged(out, error) from error
            saves.tidy(out)
            self._publish(out)

    def run(
        self, batches: Iterable[Sequence[Episode]], on_step: OnStep | None, validation: Sequence[Episode]
    ) -> TrainRecord:
        """All steps that are left."""
        method, config, record = self.method, self.config, self.record
        stream: Iterator[Sequence[Episode]] = islice(method.training_steps(batches), record.steps, None)
        if config.fresh and not record.steps:
            first = _draw(stream, 1)
            method.prepare_training(first)
            stream = chain([first], stream)
        try:
            while record.steps < config.steps:
                told = self._step(stream)
                self.curve.add(record.steps, told)
                if on_step is not None:
                    on_step(record.steps, told)
                last = record.steps == config.steps
                if validation and config.validate_every and (last or record.steps % config.validate_every == 0):
                    self._judge(validation)
                if last or (config.save_every and record.steps % config.save_every == 0):
                    self._save()
        except KeyboardInterrupt:
            if config.save_every and self.whole:
                self._save()
            raise
        finally:
            method.modules().eval()
        return record

    def _step(self, stream: Iterator[Sequence[Episode]]) -> dict[str, float]:
        """One update; where it is interrupted before the parameters change, nothing has changed."""
        method, config, step, started = self.method, self.config, self.record.steps + 1, time.perf_counter()
        carried = method.carried()
        try:
            batch = _draw(stream, step)
            told = self._learn(batch, step)
            tokens = _tokens(method.lm, batch)
        except KeyboardInterrupt:
            method.carry(carried)
            raise
        self.whole = False
        self.optimiser.step()
        seconds = time.perf_counter() - started
        self.record.note(batch, tokens, told["loss"], seconds)
        self.whole = True
        return {**told, "lr": rate(config, step), "tokens_per_second": tokens / seconds}

    def _learn(self, batch: Sequence[Episode], step: int) -> dict[str, float]:
        """Clipped gradients, by randomness (dropout, subsets) that depends on the seed and the step alone."""
        method, config = self.method, self.config
        method.modules().train()
        with torch.random.fork_rng(devices=self.devices):
            torch.manual_seed(config.seed * 1_000_003 + step)
            self.optimiser.zero_grad(set_to_none=True)
            told = {name: part.item() for name, part in method.learn(batch, config.accumulate).items()}
        if not math.isfinite(told["loss"]):
            raise UserError(f"The loss of step {step} is {told['loss']}.", "Lower the learning rate, or clip more.")
        norm = torch.nn.utils.clip_grad_norm_(_parameters(method), config.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = rate(config, step)
        return {**told, "gradient": norm.item()}

    def _judge(self, validation: Sequence[Episode]) -> None:
        self.method.modules().eval()
        with torch.random.fork_rng(devices=self.devices):
            torch.manual_seed(self.config.seed)
            figures = self.method.judge(validation)
        self.record.validation.append({"step": self.record.steps, **figures})
        self.curve.add(self.record.steps, {"validation": figures})

    def _save(self) -> None:
        """What goes on from here, if that is wanted, then the checkpoint."""
        out, step = self.config.out, self.record.steps
        if out is None:
            return
        if self.config.save_every:
            tensors = {f"parameter.{name}": each.data for name, each in self.method.modules().named_parameters()}
            for index, moments in self.optimiser.state_dict()["state"].items():
                tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
            tensors |= {f"carried.{name}": value for name, value in self.method.carried().items()}
            saves.write(out, step, tensors, {"record": asdict(self.record), "belongs": self._belongs()})
        self._publish(out)

    def _publish(self, out: Path) -> None:
        config = self.config
        checkpoints.save(
            self.method,
            out,
            self.record.summary(config),
            config.dtype,
            step=self.record.steps,
            stands_on=config.stands_on,
        )

    def _belongs(self) -> dict[str, dict[str, Json]]:
        """What must be the same in a training that goes on, as JSON gives it back."""
        method, config = self.method, self.config
        base = {"base": method.lm.fingerprint, "stands_on": dict(config.stands_on)}
        found = {
            "settings": asdict(method.settings),
            "recipe": config.recipe(),
            "data": dict(config.data),
            "base": base,
        }
        same: dict[str, dict[str, Json]] = json.loads(json.dumps({"method": {"method": method.name}, **found}))
        return same

    def _go_on(self, out: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Parameters, optimiser, record and what is carried, as `_save` left them."""
        saves.refuse_others(out, state["belongs"], self._belongs())
        parameters = dict(self.method.modules().named_parameters())
        groups = saves.grouped(tensors, parameters)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(groups["parameter"][name])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["moment"].items():
            index, _, kind = name.partition(".")
            moments.setdefault(int(index), {})[kind] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.method.carry(groups["carried"])
        self.record = typed(TrainRecord, state["record"])
        if not self.record.steps == len(self.record.losses) == state["step"]:
            raise ValueError("its record is of other steps")


def _parameters(method: Trainable[Any]) -> list[torch.nn.Parameter]:
    parameters = list(method.modules().parameters())
    if not parameters:
        raise _untrainable(method)
    return parameters


def _untrainable(method: BaseMethod[Any]) -> UserError:
    return UserError(f"Method {method.name} has no parameters to train.", "Choose a trainable method.")


def _draw(stream: Iterator[Sequence[Episode]], step: int) -> Sequence[Episode]:
    batch = next(stream, ())
    if not batch:
        raise UserError(f"The training episodes end before step {step}.", "Train fewer steps or on more data.")
    return batch


def _tokens(lm: LM, batch: Sequence[Episode]) -> int:
    """Tokens of what was read and asked, answers included."""
    asks = [ask for episode in batch for ask in episode.asks()]
    answers = sum(len(gold_ids(lm, ask)) for ask in asks if ask.answers)
    read = sum(len(piece_ids(lm, piece, first=False)) for episode in batch for piece in episode.observes())
    return read + answers + sum(len(prompt_ids(lm, ask, follows=True)) for ask in asks)
