"""Online finetuning: one pass over the documents in order, one gradient step on each, and the weights are what is kept.

    adapt   for each document x: theta <- step(theta, sum_t w_t CE(x_t | x_<t; theta) / normaliser)
    patch   theta - base, as deltas                                      the same for every question
    answer  the adapted weights on the question, closed book

Hu et al., "Meta-Learning Online Adaptation of Language Models" (CaMeLS), arXiv 2305.15076, section 3. The methods
differ in the weights of tokens alone: all ones (`uniform`), ones at named entities (`salient`),
or what a small trained LM says (`camels`).

Shape letters: B readers · N numbers of a reader · T tokens of a document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Ask, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.patching import check_fits
from ttabench.lm.scoring import target_logprobs
from ttabench.lm.tokens import piece_ids
from ttabench.methods.base import BaseMethod, Stopped
from ttabench.methods.online import UNIFORM
from ttabench.methods.online.descent import MOMENTS, Descent
from ttabench.methods.online.losses import weighted_loss
from ttabench.methods.online.settings import OnlineSettings, UniformSettings
from ttabench.methods.online.trained import trained_by

OnlineT = TypeVar("OnlineT", bound=OnlineSettings)
SHORTER = "Read less of each document (--set max_tokens=N)."


class Online(BaseMethod[OnlineT]):
    """What the methods share. State: a reader's numbers `weights` [B, N], Adam's moments of them, and `steps` [B].

    A method says what the tokens of a document weigh, see `token_weights`.
    """

    def __init__(self, lm: LM, settings: OnlineT) -> None:
        super().__init__(lm, settings)
        self._trained = trained_by(lm, settings)
        self.one_reader = settings.restrict == "none"

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:
        """Weights of the losses of a document's tokens, float32 [T], none negative.

        Args:
            piece: the document.
            ids: its first tokens, those that are read.
        """
        raise NotImplementedError

    def begin(self, rows: int) -> State:
        """Nothing read, and nothing kept: the base's own weights."""
        return State(rows, meta={**super().begin(rows).meta, "truncated_documents": [0] * rows})

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """One gradient step on each document, in order, reader by reader.

        Raises:
            Stopped: a loss or its gradient is not finite; the state before that document is in it.
            UserError: a document is longer than the model's positions.
        """
        tensors = {name: each.clone() for name, each in (dict(state.tensors) or self._fresh(state.rows)).items()}
        read, cut = list(state.meta["tokens_read"]), list(state.meta["truncated_documents"])
        for row in range(state.rows):
            vectors = {name: tensors[name][row] for name in tensors if name != "steps"}
            steps = int(tensors["steps"][row])
            descent = Descent(vectors, self._trained.layout, self.settings, steps)
            for number, chunk in enumerate(chunks):
                whole = piece_ids(self.lm, chunk[row], first=True)
                ids = whole[: self.settings.max_tokens]
                read[row] += len(ids)
                cut[row] += len(ids) < len(whole)
                if len(self.lm.start_ids) + len(ids) < 2:
                    continue  # nothing is predicted
                if not self._step(descent, chunk[row], ids, steps):
                    raise self._stopped(state, chunks, number, chunk[row])
                steps += 1
            tensors["steps"][row] = steps
        tensors = {name: each.detach() for name, each in tensors.items()}
        return State(state.rows, tensors, {**state.meta, "tokens_read": read, "truncated_documents": cut})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """What the numbers change."""
        if "weights" not in state.tensors:
            return Patch()
        return Patch(deltas=self._trained.deltas(state.tensors["weights"]))

    def _fresh(self, rows: int) -> dict[str, Tensor]:
        start_N = self._trained.start()
        made = {"weights": start_N.expand(rows, -1)}
        if self.settings.optimizer == "adam":
            made |= {name: torch.zeros_like(start_N).expand(rows, -1) for name in MOMENTS}
        return {**made, "steps": torch.zeros(rows, dtype=torch.int64, device=self.lm.device)}

    def _step(self, descent: Descent, piece: Observe, ids: list[int], steps: int) -> bool:
        """One step on a document; false, and no step, where loss or gradient are not finite."""
        check_fits(self.lm, None, [len(self.lm.start_ids) + len(ids)], SHORTER)
        weights_T = self.token_weights(piece, ids)
        seed = self.settings.seed * 1_000_003 + steps
        with torch.enable_grad(), self._dropout(seed), self._trained.in_place(descent.leaves) as patch:
            (logprobs,) = target_logprobs(self.lm, patch, [([], ids)])
            norm = descent.slopes(weighted_loss(self.settings, logprobs, weights_T))
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
        device = self.lm.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            self.lm.model.train()
            try:
                yield
            finally:
                self.lm.model.eval()

    def _stopped(self, state: State, chunks: Sequence[Sequence[Observe]], number: int, piece: Observe) -> Stopped:
        """What is told of a document that has no finite gradient, with all that was read before it."""
        before = self.adapt(state, chunks[:number]) if number else state
        what = f"{self.name} stopped at document {piece.key or piece.text[:40]!r}: its loss or gradient is not finite."
        return Stopped(what, f"Give a smaller --set lr than {self.settings.lr:g}.", before, number)


class Uniform(Online[UniformSettings]):
    """Every token weighs the same."""

    spec = UNIFORM

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # the methods' arguments
        """Ones."""
        return torch.ones(len(ids), device=self.lm.device)
