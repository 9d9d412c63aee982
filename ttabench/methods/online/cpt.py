"""CPT: continual pretraining on the documents that are read, several passes of next-token training over all of them.

    adapt   `epochs` times: the documents in another order, `batch` a step, mean loss of their tokens

The baseline of Generative Adapter (Chen et al., arXiv 2411.05877, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ttabench.core.types import Observe
from ttabench.lm.patch import State
from ttabench.methods.base import TRAINED_APART, labelled
from ttabench.methods.online import CPT
from ttabench.methods.online.descending import Descending, Document
from ttabench.methods.online.settings import CptSettings


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
        """All passes; what is read after a question has passes of its own, which the state says.

        Raises:
            Stopped: as `Descending.adapt`; nothing of this call is then read.
            UserError: as `Descending.adapt`.
        """
        label = labelled(state, "passes_over_parts", any(state.meta["tokens_read"]))
        adapted = super().adapt(state, chunks)
        return replace(adapted, meta={**adapted.meta, **label})
