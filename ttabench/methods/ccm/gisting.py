"""Gisting: COMP tokens read the whole context at once; and Gisting online: each piece by itself, one after the other.

Mu et al., arXiv 2304.08467, as the comparisons of CCM have it (arXiv 2312.03414, section 4): the LoRA acts at COMP
tokens, and both are trained on the whole context.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ttabench.core.types import Episode, Observe
from ttabench.lm.forward.tokens import new_ids
from ttabench.lm.patch import State
from ttabench.methods.base import Reads
from ttabench.methods.ccm import GISTING, GISTING_ONLINE
from ttabench.methods.ccm.comp_tokens import CompTokens, joined
from ttabench.methods.ccm.parallel import laid_whole, sees_newest
from ttabench.methods.ccm.settings import GistingSettings
from ttabench.methods.parts.newest import appended, ids_of
from ttabench.methods.parts.one_forward import Batch, Row, mean_nll


class Gisting(CompTokens[GistingSettings]):
    """Gisting. State: keys and values of the COMP tokens, the position of the next text token, and the ids of what was
    read, which no question sees: they are read again with what follows."""

    spec = GISTING
    reads: Reads = "run"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress all that was ever read."""
        new = [[token for piece in row for token in piece] for row in new_ids(self.lm, state, chunks)]
        if not chunks:
            return state
        kept = appended(self.lm, state.tensors, new, limit=sys.maxsize)
        texts = ids_of(kept, state.rows)
        counts = [len(text) for text in texts]
        keys, values = self.compressed(self.begun(state.rows, self.outside), texts, [0] * state.rows)
        tensors = {**kept, "keys": keys, "values": values, "next": self.next_of(counts)}
        return State(state.rows, tensors, {"tokens_read": counts})

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, compressed and asked in one forward."""
        comp = self.settings.comp_tokens
        return {"answer": mean_nll([laid_whole(self.lm, comp, episode) for episode in episodes], self._nll)}

    def _nll(self, rows: list[Row]) -> tuple[Tensor, int]:
        batch = Batch.of(rows, self.lm)
        return self.answer_nll(rows, batch, sees_newest(batch), nullcontext())


class GistingOnline(Gisting):
    """Gisting, piece by piece. State: keys and values of all COMP tokens, and the position of the next text token."""

    spec = GISTING_ONLINE
    reads = "pieces"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Compress each piece as if nothing had been read before; what begins the text stands before the first."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        memory = (state.tensors["keys"], state.tensors["values"]) if "keys" in state.tensors else None
        for number in range(len(chunks)):
            texts = [row[number] for row in rows]
            seen = self.begun(state.rows, self.outside) if memory is None else None
            memory = joined(memory, self.compressed(seen, texts, counts))
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        if memory is None:
            return state
        tensors = {"keys": memory[0], "values": memory[1], "next": self.next_of(counts)}
        return State(state.rows, tensors, {"tokens_read": counts})
