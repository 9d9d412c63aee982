"""Online finetuning: one pass over the documents in order, one gradient step on each, and the weights are what is kept.

Hu et al., "Meta-Learning Online Adaptation of Language Models" (CaMeLS), arXiv 2305.15076, section 3.

Shape letters: T tokens of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Observe
from ttabench.lm.patch import State
from ttabench.methods.base import TRAINED_APART, labelled
from ttabench.methods.online import CPT, UNIFORM
from ttabench.methods.online.descending import Descending, Document
from ttabench.methods.online.settings import CptSettings, OnlineSettings, UniformSettings


def weighted_loss(settings: OnlineSettings, logprobs: Tensor, weights_T: Tensor) -> Tensor:
    """The loss of a document: the weighted sum of its tokens' losses over the normaliser; differentiable.

    Args:
        logprobs: of the document's tokens; of all but the first where nothing stands before it.
        weights_T: of all of its tokens.
    """
    weights = weights_T[len(weights_T) - len(logprobs) :].to(logprobs)
    total = -(logprobs * weights).sum()
    if settings.normaliser == "padded":
        return total / (settings.pad_len - 1)
    if settings.normaliser == "tokens":
        return total / len(logprobs)
    return total / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


OnlineT = TypeVar("OnlineT", bound=OnlineSettings)


class Online(Descending[OnlineT]):
    """What the methods share. A method says what the tokens of a document weigh, see `token_weights`."""

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:
        """Weights of the losses of a document's tokens, float32 [T], none negative."""
        raise NotImplementedError

    def lessons(self, documents: Sequence[int], steps: int) -> Iterable[list[int]]:  # noqa: ARG002
        """One document a step, in order."""
        return ([number] for number in documents)

    def loss(self, documents: Sequence[Document], logprobs: Sequence[Tensor]) -> Tensor:
        """The weighted loss of the one document."""
        ((piece, ids),), (values,) = documents, logprobs
        return weighted_loss(self.settings, values, self.token_weights(piece, ids))


class Uniform(Online[UniformSettings]):
    """Every token weighs the same."""

    spec = UNIFORM

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:  # noqa: ARG002  # the methods' arguments
        """Ones."""
        return torch.ones(len(ids), device=self.lm.device)


class Cpt(Descending[CptSettings]):
    """Passes over what is read between two questions."""

    spec = CPT
    label_notes = TRAINED_APART
    reads = "run"

    def lessons(self, documents: Sequence[int], steps: int) -> Iterable[list[int]]:
        """Batches, shuffled anew for each pass from the seed and the number of steps."""
        size = self.settings.batch
        drawn = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + steps)
        for _ in range(self.settings.epochs):
            order = [documents[place] for place in torch.randperm(len(documents), generator=drawn).tolist()]
            yield from (order[begin : begin + size] for begin in range(0, len(order), size))

    def loss(self, documents: Sequence[Document], logprobs: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        """Mean over all tokens that are predicted."""
        return -torch.cat(list(logprobs)).mean()

    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """All passes; what is read after a question has passes of its own, which the state says."""
        label = labelled(state, "passes_over_parts", any(state.meta["tokens_read"]))
        adapted = super().adapt(state, chunks)
        return replace(adapted, meta={**adapted.meta, **label})
