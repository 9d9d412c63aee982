"""Online finetuning: one pass over the documents in order, one gradient step on each, and the weights are what is kept.

Hu et al., "Meta-Learning Online Adaptation of Language Models" (CaMeLS), arXiv 2305.15076, section 3. The methods
differ in the weights of tokens alone: all ones (`uniform`), ones at named entities (`salient`),
or what a small trained LM says (`camels`).

Shape letters: T tokens of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Observe
from ttabench.methods.online import UNIFORM
from ttabench.methods.online.descending import Descending, Document
from ttabench.methods.online.losses import weighted_loss
from ttabench.methods.online.settings import OnlineSettings, UniformSettings

OnlineT = TypeVar("OnlineT", bound=OnlineSettings)


class Online(Descending[OnlineT]):
    """What the methods share. A method says what the tokens of a document weigh, see `token_weights`."""

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:
        """Weights of the losses of a document's tokens, float32 [T], none negative.

        Args:
            piece: the document.
            ids: its first tokens, those that are read.
        """
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
