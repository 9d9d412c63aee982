"""LoRA: low-rank weight deltas, trained on a task and not adapted at test time.

Hu et al., arXiv 2106.09685. It is the trained baseline of StreamAdapter (arXiv 2411.09289): every
linear map, r = alpha = 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from ttabench.core.types import Chunk, Episode, Query
from ttabench.lm.forward.tokens import window_ids
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.patch import Patch, State
from ttabench.methods.lora import LORA, LoraSettings
from ttabench.methods.parts.lora import TrainableLora
from ttabench.methods.parts.one_forward import episode_row, row_loss
from ttabench.methods.trainable import training_item


class Lora(TrainableLora[LoraSettings]):
    """Trained low-rank deltas.

    State: empty.
    """

    spec = LORA

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:  # noqa: ARG002  # interface
        """Return the state unchanged, since the deltas were trained before."""
        return state

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the trained deltas."""
        return Patch(deltas=self.deltas)

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean answer NLL, in one batch per window.

        With `full_context`, each query follows the text read before it, in one forward pass per
        episode.
        """
        if self.settings.full_context:
            return {
                "answer": row_loss(
                    self.lm, [episode_row(self.lm, episode) for episode in episodes], self.deltas
                )
            }
        queries = [query for episode in episodes for query in episode.queries()]
        losses, count = [], 0
        for _, group in groupby(queries, key=lambda query: query.window):
            same_window = list(group)
            ids = window_ids(self.lm, same_window[0], is_continuation=False)
            patch = Patch(
                torch.tensor([ids], device=self.lm.device) if ids else None, deltas=self.deltas
            )
            items = [
                training_item(self.lm, query, is_continuation=bool(ids)) for query in same_window
            ]
            summed, tokens = answer_nll(self.lm, patch, items)
            losses.append(summed)
            count += tokens
        return {"answer": torch.stack(losses).sum() / count}
