"""Gradient steps on the documents that are read, under which the base answers closed book: what the methods share.

Shape letters: B readers · N numbers of a reader · T tokens of a document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.accelerators import forked_draws
from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import piece_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import target_logprobs
from ttabench.methods.base import BaseMethod, Stopped
from ttabench.methods.parts.lora_shape import DescentSettings
from ttabench.methods.parts.trained import MOMENTS, Descent, trained_by

DescentT = TypeVar("DescentT", bound=DescentSettings)
SHORTER = "Read less of each document (--set max_tokens=N)."
Document = tuple[Observe, list[int]]
"""A document, and its first tokens, those that are read."""


class Descending(BaseMethod[DescentT]):
    """State: the numbers `weights` [1, N], Adam's moments of them, and `steps` [1]."""

    one_reader = True

    def __init__(self, lm: LM, settings: DescentT) -> None:
        super().__init__(lm, settings)
        self._trained = trained_by(lm, settings)

    def lessons(self, documents: Sequence[int], steps: int) -> Iterable[list[int]]:
        """The documents of each gradient step.

        Args:
            documents: numbers of those in which something is predicted, in the order in which they are read.
        """
        raise NotImplementedError

    def loss(self, documents: Sequence[Document], logprobs: Sequence[Tensor]) -> Tensor:
        """The loss of a step; differentiable.

        Args:
            logprobs: of the tokens of each; of all but the first where nothing stands before it.
        """
        raise NotImplementedError

    def begin(self, rows: int) -> State:
        """Nothing read, and nothing kept: the base's own weights."""
        return State(rows, meta={**super().begin(rows).meta, "truncated_documents": [0] * rows})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Take all gradient steps."""
        tensors = {name: each.clone() for name, each in (dict(state.tensors) or self._fresh()).items()}
        vectors, steps = {name: each[0] for name, each in tensors.items() if name != "steps"}, int(tensors["steps"])
        descent = Descent(vectors, self._trained.layout, self.settings, steps)
        pieces = [piece for (piece,) in chunks]
        wholes = [piece_ids(self.lm, piece, first=True) for piece in pieces]
        texts = [whole[: self.settings.max_tokens] for whole in wholes]
        start = len(self.lm.start_ids)
        predicting = [number for number, text in enumerate(texts) if start + len(text) > 1]
        for numbers in self.lessons(predicting, steps):
            if not self._step(descent, [(pieces[number], texts[number]) for number in numbers], steps):
                raise self._stopped(state, chunks, numbers[0])
            steps += 1
        tensors["steps"].fill_(steps)
        (read,), (cut,) = state.meta["tokens_read"], state.meta["truncated_documents"]
        read += sum(map(len, texts))
        cut += sum(len(text) < len(whole) for text, whole in zip(texts, wholes, strict=True))
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        return State(1, tensors, {**state.meta, "tokens_read": [read], "truncated_documents": [cut]})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """Weight changes that the numbers stand for."""
        if "weights" not in state.tensors:
            return Patch()
        return Patch(deltas=self._trained.deltas(state.tensors["weights"][0]))

    def _fresh(self) -> dict[str, Tensor]:
        made = {"weights": self._trained.start()[None]}
        if self.settings.optimizer == "adam":
            made |= {name: torch.zeros_like(made["weights"]) for name in MOMENTS}
        return {**made, "steps": torch.zeros(1, dtype=torch.int64, device=self.lm.device)}

    def _step(self, descent: Descent, documents: Sequence[Document], steps: int) -> bool:
        """One step on some documents; false, and no step, where loss or gradient are not finite."""
        check_fits(self.lm, None, [len(self.lm.start_ids) + len(ids) for _, ids in documents], SHORTER)
        seed = self.settings.seed * 1_000_003 + steps
        with torch.enable_grad(), self._dropout(seed), self._trained.in_place(descent.leaves) as patch:
            logprobs = target_logprobs(self.lm, patch, [([], ids) for _, ids in documents])
            norm = descent.slopes(self.loss(documents, logprobs))
        if not math.isfinite(norm):
            return False
        descent.step()
        return True

    @contextmanager
    def _dropout(self, seed: int) -> Iterator[None]:
        """The base's own dropout, drawn from a seed, if it is wanted."""
        if not self.settings.dropout:
            yield
            return
        with forked_draws(self.lm.device):
            torch.manual_seed(seed)
            self.lm.model.train()
            try:
                yield
            finally:
                self.lm.model.eval()

    def _stopped(self, state: State, chunks: Sequence[Sequence[Observe]], number: int) -> Stopped:
        """Error about a document that has no finite gradient, with the state of all that was read before it."""
        (piece,) = chunks[number]
        if self.reads == "run":
            number = 0  # passes go over all of them: none was read to its end
        before = self.adapt(state, chunks[:number]) if number else state
        fault = f"{self.name} stopped at document {piece.key or piece.text[:40]!r}: its loss or gradient is not finite."
        return Stopped(fault, f"Give a smaller --set lr than {self.settings.lr:g}.", before, number)
