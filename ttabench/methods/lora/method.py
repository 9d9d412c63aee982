"""LoRA: low-rank weight deltas trained once on a task's training split; nothing is adapted at test time.

Hu et al., arXiv 2106.09685; the trained baseline of StreamAdapter (arXiv 2411.09289): every linear map, r = alpha = 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.forward.tokens import window_ids
from ttabench.lm.patch import Patch, State
from ttabench.lm.verbs.scoring import nll
from ttabench.methods.lora import LORA, LoraSettings
from ttabench.methods.parts.lora import OwnLora
from ttabench.methods.parts.one_forward import answer_loss, laid
from ttabench.methods.trainable import training_item


class Lora(OwnLora[LoraSettings]):
    """Trained low-rank deltas. State: empty."""

    spec = LORA

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:  # noqa: ARG002  # the contract's
        """Nothing: what it knows it learned before."""
        return state

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The trained deltas."""
        return Patch(deltas=self.deltas)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers, asked in one batch behind what stands in their window. With
        `full_context` behind what was read before them, too: one forward an episode."""
        if self.settings.full_context:
            return {"answer": answer_loss(self.lm, [laid(self.lm, episode) for episode in episodes], self.deltas)}
        asks = [ask for episode in episodes for ask in episode.asks()]
        losses, count = [], 0
        for _, group in groupby(asks, key=lambda ask: ask.window):
            together = list(group)
            ids = window_ids(self.lm, together[0], follows=False)
            patch = Patch(torch.tensor([ids], device=self.lm.device) if ids else None, deltas=self.deltas)
            items = [training_item(self.lm, ask, follows=bool(ids)) for ask in together]
            summed, tokens = nll(self.lm, patch, items)
            losses.append(summed)
            count += tokens
        return {"answer": torch.stack(losses).sum() / count}
