"""One training loop for every method, episodes in, checkpoints and a loss curve out; and Muon, an optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, groupby, islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ttabench.core.environment import isolated_rng
from ttabench.core.errors import UserError
from ttabench.core.signals import postpone_signals
from ttabench.core.types import Episode
from ttabench.lm.forward.patching import gradient_checkpointing
from ttabench.lm.forward.tokens import chunk_ids, gold_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.methods.base import BaseMethod
from ttabench.methods.trainable import Trainable
from ttabench.training import training_state
from ttabench.training.config import TrainConfig, TrainRecord, learning_rate, untrainable_error

OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]
MAX_UNSAVED_SECONDS = 300.0
"""A training that is saved at all is saved at least as often, however few its steps."""


def train(
    method: BaseMethod[Any],
    batches: Iterable[Sequence[Episode]],
    config: TrainConfig,
    on_step: OnStep | None = None,
    validation: Mapping[str, Sequence[Episode]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainRecord:
    """Train a method in place and leave it ready for use; a UserError where that cannot be done.

    SIGINT and SIGTERM act after the step under way, once it is saved; a second one acts at once.

    Args:
        batches: the episodes of each step; long enough, the same from its start at every call (`stages.lessons`).
        on_step: called after every step with its number (from 1), the named parts of the loss, their sum ("loss"), the
            norm of the gradient before clipping ("gradient"), the learning rate ("lr") and "tokens_per_second".
        validation: episodes of each task that are judged every `config.validate_every` steps; of several tasks, "loss"
            is the mean of theirs, whose figures stand beside it as "TASK loss".
        clock: seconds, see `MAX_UNSAVED_SECONDS`.
    """
    validation = {task: episodes for task, episodes in (validation or {}).items() if episodes}
    if config.best and not validation:
        raise UserError("Without validation episodes no step is the best.", "Leave out --best.")
    if not isinstance(method, Trainable):
        raise untrainable_error(method.name)
    with (
        training_state.lock_folder(config.out, resume=config.resume)
        if config.out
        else nullcontext()
    ):
        return _Training(method, config).run(batches, on_step, validation, clock)


class _Training:
    """A training under way: the method, its optimiser, and what happened so far."""

    def __init__(self, method: Trainable[Any], config: TrainConfig) -> None:
        self.method, self.config = method, config
        adam: dict[str, Any] = {
            "lr": config.lr,
            "betas": (0.9, config.beta2),
            "weight_decay": config.decay,
        }
        muon, modules = config.optimizer == "muon", method.modules()
        self.optimiser = (
            Muon(modules, **adam) if muon else torch.optim.AdamW(modules.parameters(), **adam)
        )
        self.record = TrainRecord()
        self.best: Mapping[str, torch.Tensor] = {}
        """Parameters of the lowest validation loss so far, where they are kept."""
        if config.out is not None and not config.resume:
            training_state.discard(config.out)
        elif resumed := config.out and training_state.load_saved(
            config.out, method, config, self.optimiser
        ):
            self.record, self.best = resumed
        self.curve = training_state.Curve(config, self.record)

    def run(
        self,
        batches: Iterable[Sequence[Episode]],
        on_step: OnStep | None,
        validation: Mapping[str, Sequence[Episode]],
        clock: Callable[[], float],
    ) -> TrainRecord:
        """All steps that are left."""
        method, config, record = self.method, self.config, self.record
        stream: Iterator[Sequence[Episode]] = islice(batches, record.steps, None)
        if config.fresh and not record.steps:
            first = _next_batch(stream, 1)
            method.prepare_training(first)
            stream = chain([first], stream)
        last_save, is_interrupted = clock(), False
        try:
            with postpone_signals() as signals:
                while record.steps < config.steps and not is_interrupted:
                    parts, step = self._step(stream), record.steps
                    self.curve.add(step, parts)
                    if on_step is not None:
                        on_step(step, parts)
                    if (
                        validation
                        and config.validate_every
                        and _is_due(step, config.validate_every, config.steps)
                    ):
                        self._validate(validation)
                    is_interrupted = bool(signals)
                    is_save_due = config.save_every and (
                        is_interrupted or clock() - last_save >= MAX_UNSAVED_SECONDS
                    )
                    if config.out is not None and (
                        is_save_due or _is_due(step, config.save_every, config.steps)
                    ):
                        training_state.save_state(
                            config.out, method, self.optimiser, record, config, self.best
                        )
                        last_save = clock()
        finally:
            method.modules().eval()
        training_state.copy_parameters(method, self.best)
        return record

    def _step(self, stream: Iterator[Sequence[Episode]]) -> dict[str, float]:
        """One update of the parameters; randomness (dropout, subsets) depends on the seed and the step alone."""
        step, started, method, config = (
            self.record.steps + 1,
            time.perf_counter(),
            self.method,
            self.config,
        )
        batch = _next_batch(stream, step)
        method.modules().train()
        recomputation = gradient_checkpointing(method.lm) if config.recompute else nullcontext()
        with recomputation, isolated_rng(method.lm.device):
            torch.manual_seed(config.seed * 1_000_003 + step)
            self.optimiser.zero_grad(set_to_none=True)
            parts = {name: part.item() for name, part in method.accumulate_gradients(batch).items()}
        if not math.isfinite(parts["loss"]):
            raise UserError(
                f"The loss of step {step} is {parts['loss']}.",
                "Lower the learning rate, or clip more.",
            )
        norm = torch.nn.utils.clip_grad_norm_(method.modules().parameters(), config.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        tokens = _count_tokens(method.lm, batch)
        self.optimiser.step()
        seconds = time.perf_counter() - started
        self.record.count_step(batch, tokens, parts["loss"], seconds)
        parts |= {
            "gradient": norm.item(),
            "lr": learning_rate(config, step),
            "tokens_per_second": tokens / seconds,
        }
        return parts

    def _validate(self, validation: Mapping[str, Sequence[Episode]]) -> None:
        self.method.modules().eval()
        with isolated_rng(self.method.lm.device):
            torch.manual_seed(self.config.seed)
            by_task = {
                task: self.method.validate(episodes) for task, episodes in validation.items()
            }
        (figures, *others) = by_task.values()
        if others:
            mean = sum(each["loss"] for each in by_task.values()) / len(by_task)
            task_figures = {
                f"{task} {name}": value
                for task, each in by_task.items()
                for name, value in each.items()
            }
            figures = {"loss": mean, **task_figures}
        self.record.validation.append({"step": self.record.steps, **figures})
        if self.config.best and self.record.best() == self.record.steps:
            self.best = {
                name: each.detach().clone()
                for name, each in self.method.modules().named_parameters()
            }
        self.curve.add(self.record.steps, {"validation": figures})


def _is_due(step: int, every: int, last: int) -> bool:
    """Whether what is done every so many steps, 0 for none, and at the end is done after this one."""
    return step == last or bool(every and step % every == 0)


def _next_batch(stream: Iterator[Sequence[Episode]], step: int) -> Sequence[Episode]:
    batch = next(stream, ())
    if not batch:
        raise UserError(
            f"The training episodes end before step {step}.", "Train fewer steps or on more data."
        )
    return batch


def _count_tokens(lm: LM, batch: Sequence[Episode]) -> int:
    """Tokens of what was read and asked, answers included."""
    queries = [query for episode in batch for query in episode.queries()]
    answers = sum(len(gold_ids(lm, query)) for query in queries if query.answers)
    read = sum(
        len(chunk_ids(lm, piece, first=False)) for episode in batch for piece in episode.chunks()
    )
    return (
        read + answers + sum(len(prompt_ids(lm, query, is_continuation=True)) for query in queries)
    )


MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
"""Of the Newton-Schulz iteration."""
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ADAM_UPDATE_RMS = 0.2
"""Root mean square of Adam's updates, about."""


class Muon(torch.optim.AdamW):
    """Muon for the matrices of modules, Adam for what else they have: embeddings, gains, shifts, prompts.

        M <- b M + (1 - b) G                             mean of the gradients G
        U ~ orthogonal factor of b M + (1 - b) G         five Newton-Schulz steps: singular values near 1
        W <- W - lr 0.2 sqrt(max(rows, columns)) U       about as large as an update of Adam: one rate serves both

    Jordan et al., 2024; the factor: Liu et al., arXiv 2502.16982. A parameter of three dimensions is a stack of
    matrices; `torch.optim.Muon` takes none, and computes in bfloat16.
    Shape letters: S matrices of one shape · M rows · N columns.
    `adam`: options of Adam, of which `lr` and `weight_decay` hold for both.
    """

    def __init__(self, modules: nn.Module, **adam: Any) -> None:
        self.matrix_parameters = {id(matrix) for matrix in matrix_parameters(modules)}
        super().__init__(modules.parameters(), **adam)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; those of matrices are spent by it."""
        assert closure is None, "Muon evaluates nothing again"
        for group in self.param_groups:
            with_gradient = [
                matrix
                for matrix in group["params"]
                if matrix.grad is not None and id(matrix) in self.matrix_parameters
            ]
            for _, same_shape in groupby(sorted(with_gradient, key=_shape), _shape):
                self._update_matrices(list(same_shape), group["lr"], group["weight_decay"])
        super().step()

    def _update_matrices(
        self, same_shape: list[nn.Parameter], learning_rate: float, decay: float
    ) -> None:
        """Update matrices of one shape [M, N], or stacks of them, all at once."""
        lookahead = []
        for matrix in same_shape:
            gradient, matrix.grad, state = (
                matrix.grad,
                None,
                self.state[matrix],
            )  # Adam leaves alone what has none
            assert gradient is not None
            if not state:
                state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(matrix)
            state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
            lookahead.append(gradient.lerp(state["exp_avg"], MOMENTUM).reshape(-1, *_shape(matrix)))
        updates = torch.split(
            orthogonalize(torch.cat(lookahead)), [len(stack) for stack in lookahead]
        )
        scale = ADAM_UPDATE_RMS * max(_shape(same_shape[0])) ** 0.5
        for matrix, update in zip(same_shape, updates, strict=True):
            matrix.mul_(1 - learning_rate * decay)
            matrix.add_(update.view_as(matrix), alpha=-learning_rate * scale)


def matrix_parameters(modules: nn.Module) -> Iterable[nn.Parameter]:
    """Weights that map one vector to another: of linear layers, stacks of them, and low-rank factors (`ParameterList`).

    Other parameters of two dimensions hold vectors side by side: learned queries, gains of several slots, embeddings.
    """
    for module in modules.modules():
        if isinstance(module, nn.ParameterList):
            yield from (parameter for parameter in module if parameter.dim() == 2)
            continue
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and (
            isinstance(module, nn.Linear) or weight.dim() == 3
        ):
            yield weight


def orthogonalize(stacked_SMN: Tensor) -> Tensor:
    """Matrices of the same singular vectors with singular values near 1 (about 0.7 to 1.2), [S, M, N]."""
    tall = stacked_SMN.shape[1] > stacked_SMN.shape[2]
    x: Tensor = stacked_SMN.mT if tall else stacked_SMN
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def _shape(parameter: Tensor) -> tuple[int, int]:
    return parameter.shape[-2], parameter.shape[-1]
