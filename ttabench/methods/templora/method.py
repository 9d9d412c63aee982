"""TempLoRA: a LoRA trained on the context itself while it is read, and thrown away at its end.

Wang, Ma, Cai, arXiv 2401.11504 (released code: TemporaryLoRA/Temp-LoRA): by="unit".
Shape letters: B rows · N numbers of a row's factors · R rank · I/O features in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from ttabench.core.environment import forked_draws
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import check_fits, layers_recomputed, step_bytes
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import Item, target_logprobs
from ttabench.methods.base import BaseMethod
from ttabench.methods.parts.kept import appended, ids_of, window_of
from ttabench.methods.parts.lora import Factors, shaped
from ttabench.methods.templora import TEMPLORA, TempLoraSettings

SHORTER = "Read shorter pieces (`adapt --pieces paragraphs`), or keep fewer tokens before each (--set prefix=N)."
STEP_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""What a gradient step may hold between its two ways; one that needs more computes its layers again on the way back."""
VECTORS = ("factors", "first_moment", "second_moment")
Lesson = tuple[float, Item]
"""Learning rate, and prefix and target ids."""


class TempLora(BaseMethod[TempLoraSettings]):
    """TempLoRA. State: the factors and their moments as vectors [1, N], steps and pieces so far, last tokens."""

    spec = TEMPLORA
    own_tensors = ("tokens", "lengths")
    one_reader = True

    def __init__(self, lm: LM, settings: TempLoraSettings) -> None:
        super().__init__(lm, settings)
        self._factors = Factors(lm, settings)
        self.reads = "run" if settings.by == "epoch" else "pieces"

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Train on pieces in order."""
        held, pieces = dict(state.tensors) or self._fresh(), new_ids(self.lm, state, chunks)[0]
        (text,), before, count = ids_of(held, 1), int(held["steps"]), int(held["pieces"])
        trained = {name: held[name].clone() for name in VECTORS}
        lessons = self._lessons(text, pieces, count)
        self._train({name: vector[0] for name, vector in trained.items()}, lessons, before)
        counts = {"steps": held["steps"] + len(lessons), "pieces": held["pieces"] + len(pieces)}
        return self._read(state, {**held, **trained, **counts}, pieces)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The factors as deltas, and the newest tokens in the window."""
        tensors = state.tensors
        kept = self.settings.prefix - 1
        window = window_of(appended(self.lm, {}, ids_of(tensors, 1), kept) if kept > 0 else {})
        if "factors" not in tensors:
            return window
        return replace(window, deltas=self._factors.patch(shaped(tensors["factors"][0], self._factors.layout)).deltas)

    def _read(self, state: State, tensors: dict[str, Tensor], pieces: list[list[int]]) -> State:
        """With the last `prefix` tokens of what was read."""
        size, (before,) = self.settings.prefix, state.meta["tokens_read"]
        text = [*ids_of(tensors, 1)[0], *chain(*pieces)]
        kept = text[max(0, len(text) - size) :] if size else []
        tokens_1T = torch.tensor([[*kept, *[self.lm.pad_id] * (size - len(kept))]], dtype=torch.int64)
        window = {"tokens": tokens_1T.to(self.lm.device), "lengths": torch.tensor([len(kept)], device=self.lm.device)}
        return State(1, {**tensors, **window}, {"tokens_read": [before + sum(map(len, pieces))]})

    def _fresh(self) -> dict[str, Tensor]:
        start_1N, none_1 = self._factors.start()[None], torch.zeros(1, dtype=torch.int64, device=self.lm.device)
        vectors = dict.fromkeys(VECTORS, torch.zeros_like(start_1N)) | {"factors": start_1N}
        return {**vectors, "steps": none_1, "pieces": none_1}

    def _train(self, vectors: Mapping[str, Tensor], lessons: list[Lesson], before: int) -> None:
        """Take all steps, in place."""
        s, factors_N = self.settings, vectors["factors"]
        if not lessons:
            return
        check_fits(self.lm, None, [self._length(item) for _, item in lessons], SHORTER)
        adam = torch.optim.Adam([factors_N.requires_grad_()], betas=(0.9, s.beta2), eps=s.eps, fused=True)
        adam.state[factors_N] = {
            "step": torch.tensor(float(before), device=factors_N.device),
            "exp_avg": vectors["first_moment"],
            "exp_avg_sq": vectors["second_moment"],
        }
        for number, (rate, item) in enumerate(lessons, before):
            adam.zero_grad()
            if self._backward(factors_N, item, s.seed * 1_000_003 + number):
                adam.param_groups[0]["lr"] = rate
                torch.nn.utils.clip_grad_norm_([factors_N], s.clip)
                adam.step()

    def _length(self, item: Item) -> int:
        return len(self.lm.start_ids) + len(item[0]) + len(item[1]) - 1

    def _backward(self, factors_N: Tensor, item: Item, seed: int) -> bool:
        """Gradient of the loss of an item; whether it has one."""
        s, device = self.settings, self.lm.device
        again = step_bytes(self.lm, self._length(item)) > STEP_BYTES.get(device.type, STEP_BYTES["cuda"])
        with torch.enable_grad(), layers_recomputed(self.lm) if again else nullcontext(), forked_draws(device):
            torch.manual_seed(seed)
            patch = self._factors.patch(shaped(factors_N, self._factors.layout), s.dropout)
            (values,) = target_logprobs(self.lm, patch, [item])
            if len(values):
                (-values.sum() / len(values)).backward()  # type: ignore[no-untyped-call]
        return len(values) > 0

    def _lessons(self, held: list[int], pieces: list[list[int]], before: int) -> list[Lesson]:
        """Those of every step."""
        s, text, items = self.settings, list(held), []
        for piece in pieces:
            items.append((text[max(0, len(text) - s.prefix) :] if s.prefix else [], piece))
            text += piece
        order = [*range(len(items))] * s.epochs
        if s.by == "unit":
            order.sort()
        rates = self._rates(order, before)
        return [(rate, items[number]) for rate, number in zip(rates, order, strict=True) if items[number][1]]

    def _rates(self, order: Sequence[int], before: int) -> list[float]:
        s = self.settings
        if s.schedule == "units2":
            return [s.lr * min(1.0, (before + number) / 2) for number in order]
        if s.schedule == "constant" or not order:
            return [s.lr] * len(order)
        probe = torch.optim.SGD([torch.zeros(1)], lr=s.lr)
        cycle = torch.optim.lr_scheduler.OneCycleLR(probe, max_lr=s.lr, total_steps=max(2, len(order)))
        rates = []
        for _ in order:
            rates.append(float(*cycle.get_last_lr()))
            probe.step()
            cycle.step()
        return rates
