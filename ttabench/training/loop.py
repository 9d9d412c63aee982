"""Training loop for all methods, and the optimiser Muon.

The loop takes batches of episodes, and writes checkpoints and a loss curve.
"""

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
from ttabench.lm.forward.capabilities import require_capabilities
from ttabench.lm.forward.patching import gradient_checkpointing
from ttabench.lm.forward.tokens import chunk_ids, gold_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.methods.base import Method
from ttabench.methods.trainable import Trainable
from ttabench.training import training_state
from ttabench.training.config import TrainConfig, TrainRecord, learning_rate, untrainable_error

OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Callback with the number of a step and its metrics, see `train`."""
MAX_UNSAVED_SECONDS = 300.0
"""Maximum time between saves if `save_every` is set, even before `save_every` steps are done."""


def train(
    method: Method[Any],
    batches: Iterable[Sequence[Episode]],
    config: TrainConfig,
    on_step: OnStep | None = None,
    validation: Mapping[str, Sequence[Episode]] | None = None,
) -> TrainRecord:
    """Train a method in place and leave it ready for use.

    SIGINT and SIGTERM end the training after the current step is saved. A second signal ends it
    immediately.

    Args:
        batches: the episodes of each step, from the first step on, for at least `config.steps`
            steps. A resumed training skips the steps it has taken, so every call must get the same
            batches (`batches.make_batches`).
        on_step: called after every step with its number (from 1), the named parts of the loss,
            their sum ("loss"), the norm of the gradient before clipping ("gradient"), the learning
            rate ("lr") and "tokens_per_second".
        validation: episodes of each task, evaluated every `config.validate_every` steps. With
            several tasks, "loss" is the mean over tasks, and each task's metrics are "TASK loss"
            etc.

    Raises:
        UserError: the method cannot be trained, or the training cannot go on.
    """
    validation = {task: episodes for task, episodes in (validation or {}).items() if episodes}
    if config.best and not validation:
        raise UserError("--best needs validation episodes.", "Remove --best.")
    if not isinstance(method, Trainable):
        raise untrainable_error(method.name)
    require_capabilities(method.lm, "gradients")
    with (
        training_state.lock_folder(config.out, resume=config.resume)
        if config.out
        else nullcontext()
    ):
        return _Training(method, config).run(batches, on_step, validation)


class _Training:
    """A training in progress: the method, its optimiser, and the record so far."""

    def __init__(self, method: Trainable[Any], config: TrainConfig) -> None:
        self.method, self.config = method, config
        adam: dict[str, Any] = {
            "lr": config.lr,
            "betas": (0.9, config.beta2),
            "weight_decay": config.decay,
        }
        modules = method.modules()
        self.optimiser = (
            Muon(modules, **adam)
            if config.optimizer == "muon"
            else torch.optim.AdamW(modules.parameters(), **adam)
        )
        self.record = TrainRecord()
        self.best: Mapping[str, torch.Tensor] = {}
        """Parameters with the lowest validation loss so far, if they are kept."""
        if config.out is not None and not config.resume:
            training_state.discard(config.out)
        elif config.out is not None:
            saved = training_state.load_saved(config.out, method, config, self.optimiser)
            if saved is not None:
                self.record, self.best = saved
        self.curve = training_state.Curve(config, self.record)

    def run(
        self,
        batches: Iterable[Sequence[Episode]],
        on_step: OnStep | None,
        validation: Mapping[str, Sequence[Episode]],
    ) -> TrainRecord:
        """Run all remaining steps."""
        method, config, record = self.method, self.config, self.record
        stream: Iterator[Sequence[Episode]] = islice(batches, record.steps, None)
        if config.fresh and not record.steps:
            first_batch = _next_batch(stream, 1)
            method.prepare_training(first_batch)
            stream = chain([first_batch], stream)
        last_save = time.monotonic()
        is_interrupted = False
        try:
            with postpone_signals() as signals:
                while record.steps < config.steps and not is_interrupted:
                    parts = self._step(stream)
                    step = record.steps
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
                        is_interrupted or time.monotonic() - last_save >= MAX_UNSAVED_SECONDS
                    )
                    if config.out is not None and (
                        is_save_due or _is_due(step, config.save_every, config.steps)
                    ):
                        training_state.save_state(
                            config.out, method, self.optimiser, record, config, self.best
                        )
                        last_save = time.monotonic()
        finally:
            method.modules().eval()
        training_state.copy_parameters(method, self.best)
        return record

    def _step(self, stream: Iterator[Sequence[Episode]]) -> dict[str, float]:
        """Update the parameters once, and return the metrics of the step.

        Randomness (dropout, subsets) depends only on the seed and the step.
        """
        step = self.record.steps + 1
        started = time.perf_counter()
        method = self.method
        config = self.config
        batch = _next_batch(stream, step)
        method.modules().train()
        recomputation = gradient_checkpointing(method.lm) if config.recompute else nullcontext()
        with recomputation, isolated_rng(method.lm.device):
            torch.manual_seed(config.seed * 1_000_003 + step)
            self.optimiser.zero_grad(set_to_none=True)
            parts = {name: part.item() for name, part in method.accumulate_gradients(batch).items()}
        if not math.isfinite(parts["loss"]):
            raise UserError(
                f"The loss of step {step} is {parts['loss']}.", "Set a lower --lr or --clip."
            )
        norm = torch.nn.utils.clip_grad_norm_(method.modules().parameters(), config.clip)
        lr = learning_rate(config, step)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        tokens = _count_tokens(method.lm, batch)
        self.optimiser.step()
        seconds = time.perf_counter() - started
        self.record.count_step(batch, tokens, parts["loss"], seconds)
        parts |= {"gradient": norm.item(), "lr": lr, "tokens_per_second": tokens / seconds}
        return parts

    def _validate(self, validation: Mapping[str, Sequence[Episode]]) -> None:
        self.method.modules().eval()
        with isolated_rng(self.method.lm.device):
            torch.manual_seed(self.config.seed)
            by_task = {
                task: self.method.validate(episodes) for task, episodes in validation.items()
            }
        (metrics, *more_tasks) = by_task.values()
        if more_tasks:
            mean = sum(each["loss"] for each in by_task.values()) / len(by_task)
            task_metrics = {
                f"{task} {name}": value
                for task, each in by_task.items()
                for name, value in each.items()
            }
            metrics = {"loss": mean, **task_metrics}
        self.record.validation.append({"step": self.record.steps, **metrics})
        if self.config.best and self.record.best() == self.record.steps:
            self.best = training_state.clone_parameters(self.method)
        self.curve.add(self.record.steps, {"validation": metrics})


def _is_due(step: int, every: int, last: int) -> bool:
    """Return True at the last step, and at every multiple of `every` (0: at the last step only)."""
    return step == last or bool(every and step % every == 0)


def _next_batch(stream: Iterator[Sequence[Episode]], step: int) -> Sequence[Episode]:
    batch = next(stream, ())
    if not batch:
        raise UserError(
            f"The training episodes end before step {step}.", "Use fewer --steps or more data."
        )
    return batch


def _count_tokens(lm: LM, batch: Sequence[Episode]) -> int:
    queries = [query for episode in batch for query in episode.queries()]
    answer_tokens = sum(len(gold_ids(lm, query)) for query in queries if query.answers)
    chunk_tokens = sum(
        len(chunk_ids(lm, chunk, first=False)) for episode in batch for chunk in episode.chunks()
    )
    return (
        chunk_tokens
        + answer_tokens
        + sum(len(prompt_ids(lm, query, is_continuation=True)) for query in queries)
    )


MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ADAM_UPDATE_RMS = 0.2
"""Approximate root mean square of Adam's updates."""


class Muon(torch.optim.AdamW):
    """Muon for matrices, and AdamW for all other parameters, such as embeddings, norms and prompts.

        M <- b M + (1 - b) G                             mean of the gradients G
        U ~ orthogonal factor of b M + (1 - b) G         five Newton-Schulz steps
        W <- W - lr 0.2 sqrt(max(rows, columns)) U       about as large as an update of Adam

    b is `MOMENTUM`. The singular values of U are near 1. One learning rate serves both optimisers.

    Source: Jordan et al., 2024; the factor 0.2 sqrt(...) is from Liu et al., arXiv 2502.16982. A
    parameter of three dimensions is a stack of matrices. `torch.optim.Muon` does not support these,
    and computes in bfloat16.

    Shape letters: S matrices of one shape · M rows · N columns.

    `adam`: options of Adam; `lr` and `weight_decay` apply to both.
    """

    def __init__(self, modules: nn.Module, **adam: Any) -> None:
        self.matrix_parameters = {id(matrix) for matrix in matrix_parameters(modules)}
        super().__init__(modules.parameters(), **adam)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. Clears the gradients of matrices."""
        assert closure is None, "Muon supports no closure"
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
        """Update matrices of one shape [M, N], or stacks of them, together."""
        nesterov_momenta = []
        for matrix in same_shape:
            gradient = matrix.grad
            matrix.grad = None  # so that AdamW skips this parameter
            state = self.state[matrix]
            assert gradient is not None
            if not state:
                state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(matrix)
            state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
            nesterov_momenta.append(
                gradient.lerp(state["exp_avg"], MOMENTUM).reshape(-1, *_shape(matrix))
            )
        updates = torch.split(
            orthogonalize(torch.cat(nesterov_momenta)), [len(stack) for stack in nesterov_momenta]
        )
        scale = ADAM_UPDATE_RMS * max(_shape(same_shape[0])) ** 0.5
        for matrix, update in zip(same_shape, updates, strict=True):
            matrix.mul_(1 - learning_rate * decay)
            matrix.add_(update.view_as(matrix), alpha=-learning_rate * scale)


def matrix_parameters(modules: nn.Module) -> Iterable[nn.Parameter]:
    """Yield the parameters that Muon updates: those that map vectors to vectors.

    These are weights of linear layers, stacks of such weights, and low-rank factors
    (`ParameterList`). Other two-dimensional parameters are lists of vectors, such as learned
    queries and embeddings.
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
    """Return matrices [S, M, N] with the same singular vectors, and all singular values near 1.

    Five Newton-Schulz steps give singular values of about 0.7 to 1.2.
    """
    is_tall = stacked_SMN.shape[1] > stacked_SMN.shape[2]
    x: Tensor = stacked_SMN.mT if is_tall else stacked_SMN
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _shape(parameter: Tensor) -> tuple[int, int]:
    return parameter.shape[-2], parameter.shape[-1]
