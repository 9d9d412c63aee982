"""TempLoRA: a LoRA trained on the context while it is read, and discarded at its end.

Wang, Ma, Cai, arXiv 2401.11504 (released code: TemporaryLoRA/Temp-LoRA): by="unit".

Shape letters: B rows · N parameters of a row's factors · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain

import torch
from torch import Tensor

from ttabench.core.environment import isolated_rng
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import check_fits, gradient_checkpointing, gradient_step_bytes
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.inference.scoring import ScoringItem, target_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.parts.kept import append_ids, stored_ids, window_patch
from ttabench.methods.parts.lora import Factors, split_vector
from ttabench.methods.templora import TEMPLORA, TempLoraSettings

SHORTER_HINT = "Use shorter chunks (`adapt --pieces paragraphs`), or a smaller --set prefix=N."
MAX_STEP_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""Maximum activation memory of a gradient step, in bytes; larger steps recompute layers in the
backward pass."""
VECTOR_NAMES = ("factors", "first_moment", "second_moment")
TrainingStep = tuple[float, ScoringItem]
"""Learning rate, and prefix and target ids."""


class TempLora(Method[TempLoraSettings]):
    """TempLoRA.

    State: the factors and their moments as vectors [1, N], steps and chunks so far, last tokens.
    """

    spec = TEMPLORA
    unswapped_tensors = ("tokens", "lengths")
    supports_batching = False
    required_capabilities = ("gradients",)

    def __init__(self, lm: LM, settings: TempLoraSettings) -> None:
        super().__init__(lm, settings)
        self._factors = Factors(lm, settings)
        self.granularity = "segment" if settings.by == "epoch" else "chunk"

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Train on chunks in order."""
        tensors, size = dict(state.tensors) or self._initial_tensors(), self.settings.prefix
        chunk_ids = new_chunk_ids(self.lm, state, chunks)[0]
        (text,) = stored_ids(tensors, 1)
        trained = {name: tensors[name].clone() for name in VECTOR_NAMES}
        training_steps = self._training_steps(text, chunk_ids, int(tensors["pieces"]))
        vectors = {name: vector[0] for name, vector in trained.items()}
        self._train(vectors, training_steps, int(tensors["steps"]))
        text += chain(*chunk_ids)
        window_ids = text[max(0, len(text) - size) :]
        tokens_1T = torch.tensor(
            [[*window_ids, *[self.lm.pad_id] * (size - len(window_ids))]], dtype=torch.int64
        )
        tensors |= {
            **trained,
            "steps": tensors["steps"] + len(training_steps),
            "pieces": tensors["pieces"] + len(chunk_ids),
            "tokens": tokens_1T.to(self.lm.device),
            "lengths": torch.tensor([len(window_ids)], device=self.lm.device),
        }
        (before,) = state.meta["tokens_read"]
        return State(1, tensors, {"tokens_read": [before + sum(map(len, chunk_ids))]})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the factors as deltas, and the newest tokens in the window."""
        tensors = state.tensors
        window_tokens = self.settings.prefix - 1
        window = window_patch(
            append_ids(self.lm, {}, stored_ids(tensors, 1), window_tokens)
            if window_tokens > 0
            else {}
        )
        if "factors" not in tensors:
            return window
        return window + self._factors.patch(
            split_vector(tensors["factors"][0], self._factors.layout)
        )

    def _initial_tensors(self) -> dict[str, Tensor]:
        start_1N = self._factors.start()[None]
        zero_1 = torch.zeros(1, dtype=torch.int64, device=self.lm.device)
        vectors = dict.fromkeys(VECTOR_NAMES, torch.zeros_like(start_1N)) | {"factors": start_1N}
        return {**vectors, "steps": zero_1, "pieces": zero_1}

    def _train(
        self, vectors: Mapping[str, Tensor], training_steps: list[TrainingStep], before: int
    ) -> None:
        """Take all steps, in place."""
        s, factors_N = self.settings, vectors["factors"]
        if not training_steps:
            return
        check_fits(
            self.lm, None, [self._item_tokens(item) for _, item in training_steps], SHORTER_HINT
        )
        adam = torch.optim.Adam(
            [factors_N.requires_grad_()], betas=(0.9, s.beta2), eps=s.eps, fused=True
        )
        adam.state[factors_N] = {
            "step": torch.tensor(float(before), device=factors_N.device),
            "exp_avg": vectors["first_moment"],
            "exp_avg_sq": vectors["second_moment"],
        }
        for number, (rate, item) in enumerate(training_steps, before):
            adam.zero_grad()
            if self._backpropagate(factors_N, item, s.seed * 1_000_003 + number):
                adam.param_groups[0]["lr"] = rate
                torch.nn.utils.clip_grad_norm_([factors_N], s.clip)
                adam.step()

    def _item_tokens(self, item: ScoringItem) -> int:
        return len(self.lm.start_ids) + len(item[0]) + len(item[1]) - 1

    def _backpropagate(self, factors_N: Tensor, item: ScoringItem, seed: int) -> bool:
        """Backpropagate the loss of an item; return False if it has no target."""
        s, device = self.settings, self.lm.device
        recompute = gradient_step_bytes(self.lm, self._item_tokens(item)) > MAX_STEP_BYTES.get(
            device.type, MAX_STEP_BYTES["cuda"]
        )
        with (
            torch.enable_grad(),
            gradient_checkpointing(self.lm) if recompute else nullcontext(),
            isolated_rng(device),
        ):
            torch.manual_seed(seed)
            patch = self._factors.patch(split_vector(factors_N, self._factors.layout), s.dropout)
            (logprobs,) = target_logprobs(self.lm, patch, [item])
            if len(logprobs):
                (-logprobs.sum() / len(logprobs)).backward()  # type: ignore[no-untyped-call]
        return len(logprobs) > 0

    def _training_steps(
        self, read_ids: list[int], chunk_ids: list[list[int]], before: int
    ) -> list[TrainingStep]:
        """Return the learning rate and item of every step."""
        s, text, items = self.settings, list(read_ids), []
        for chunk in chunk_ids:
            items.append((text[max(0, len(text) - s.prefix) :], chunk))
            text += chunk
        order = [*range(len(items))] * s.epochs
        if s.by == "unit":
            order.sort()
        rates = self._learning_rates(order, before)
        return [
            (rate, items[number])
            for rate, number in zip(rates, order, strict=True)
            if items[number][1]
        ]

    def _learning_rates(self, order: Sequence[int], before: int) -> list[float]:
        s = self.settings
        if s.schedule == "units2":
            return [s.lr * min(1.0, (before + number) / 2) for number in order]
        if s.schedule == "constant" or not order:
            return [s.lr] * len(order)
        probe = torch.optim.SGD([torch.zeros(1)], lr=s.lr)
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            probe, max_lr=s.lr, total_steps=max(2, len(order))
        )
        rates = []
        for _ in order:
            rates.append(float(*cycle.get_last_lr()))
            probe.step()
            cycle.step()
        return rates
