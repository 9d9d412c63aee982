"""Session of a method on a base model: its state after the chunks read, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ttabench.core.types import Answer, Chunk, Query
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import continues_text, encode_patch
from ttabench.lm.forward.tokens import window_ids
from ttabench.lm.inference.answering import answer_queries, gold_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State, boost_deltas
from ttabench.methods.base import Method

MAX_CHUNKS_PER_ADAPT = 256
"""Maximum number of chunks per sequence in one call of `adapt`, for granularity "chunk".

Enough for methods to batch chunks by length, and few enough for a progress bar to move.
"""


def needs_single_queries(method: Method[Any]) -> bool:
    """True if every query has a patch of its own length, and the model cannot pad."""
    return method.query_aware and not get_capabilities(method.lm).supports_batching


class Session:
    """A method on a base model, with a state that grows as chunks are read.

    Args:
        state: state to start from, an empty one by default.
        rows: number of independent sequences (batch elements). Ignored if `state` is given.
        boost: see `lm.patch.boost_deltas`.
    """

    def __init__(
        self,
        lm: LM,
        method: Method[Any],
        state: State | None = None,
        *,
        rows: int = 1,
        boost: float = 1.0,
    ) -> None:
        self.lm = lm
        self.method = method
        self._boost = boost
        self._state = state if state is not None else method.begin(rows)
        self._pending_chunks: list[Sequence[Chunk]] = []
        self._cached_patch: tuple[tuple[Chunk, ...], Patch] | None = None

    @property
    def rows(self) -> int:
        """Number of independent sequences."""
        return self._state.rows

    @property
    def state(self) -> State:
        """State after all chunks read so far. Adapts to pending chunks first."""
        self.flush()
        return self._state

    def read(self, chunks: Sequence[Chunk]) -> None:
        """Append chunks to the context of a session with one sequence."""
        assert self.rows == 1, f"{self.rows} sequences: use read_rows"
        self.read_rows([[chunk] for chunk in chunks])

    def read_rows(self, chunks: Sequence[Sequence[Chunk]]) -> None:
        """Append chunks to the contexts. Each item of `chunks` has one chunk for each sequence."""
        assert all(len(row) == self.rows for row in chunks), f"need {self.rows} chunks per row"
        self._pending_chunks += chunks

    @property
    def pending(self) -> int:
        """Number of chunks per sequence that `read` appended and `adapt` has not received yet."""
        return len(self._pending_chunks)

    def adapt_pending(self) -> int:
        """Call `adapt` once on pending chunks.

        Returns the number of chunks per sequence in this call; 0 if none were pending.

        Raises:
            UserError: the text does not fit the model, or the method rejects it.
        """
        count = (
            min(MAX_CHUNKS_PER_ADAPT, self.pending)
            if self.method.granularity == "chunk"
            else self.pending
        )
        if count:
            self._cached_patch = None
            self._state = self.method.adapt(self._state, self._pending_chunks[:count])
            del self._pending_chunks[:count]
        return count

    def flush(self) -> None:
        """Adapt to all pending chunks."""
        while self.adapt_pending():
            pass

    def answer_state(self) -> State:
        """Return the state used for answers. Subclasses may return another state."""
        return self.state

    def patch(self, queries: Sequence[Query]) -> Patch:
        """Return the encoded patch for queries that share a window.

        A session of several rows needs one query per row. Unless the method is `query_aware`, the
        patch is cached until more chunks are read or the window changes.

        Raises:
            UserError: the window does not fit the model.
        """
        assert queries, "no queries"
        self.flush()
        if self.method.query_aware:
            return self._build_patch(queries)
        window = queries[0].window
        if self._cached_patch is None or self._cached_patch[0] != window:
            self._cached_patch = None  # free the previous patch before the next one is built
            patch = self._build_patch(queries if self.rows > 1 else queries[:1])
            self._cached_patch = window, patch
        return self._cached_patch[1]

    def _build_patch(self, queries: Sequence[Query]) -> Patch:
        state = self.answer_state()
        patch = self.method.patch(state, queries)
        if self._boost != 1.0 and (patch.deltas or state.tensors or self.method.growth == "none"):
            patch = boost_deltas(patch, self._boost)
        patch = encode_patch(self.lm, patch)
        # the window's own text follows the context that the method put in the prefix
        window_tokens = window_ids(self.lm, queries[0], is_continuation=continues_text(patch))
        if not window_tokens:
            return patch
        return encode_patch(
            self.lm, replace(patch, tokens_BT=torch.tensor([window_tokens], device=self.lm.device))
        )

    def count_context_slots(self, patch: Patch, query: Query, row: int = 0) -> int:
        """Count the key/value slots of context that a query reads, averaged over heads.

        Slots of the window's own text are excluded.
        """
        prefix = patch.prefix
        if prefix is None:
            return 0
        slots = prefix.slots
        if prefix.mask_BP is not None:
            slots = int(prefix.mask_BP[row if len(prefix.mask_BP) > 1 else 0].sum())
        if prefix.bias_LBHP is not None:
            # a bias of -inf hides a slot from a head
            evicted_LB = torch.stack(
                [bias.isneginf().float().mean(1).sum(1).cpu() for bias in prefix.bias_LBHP]
            )
            slots -= int(evicted_LB.mean(0)[row if evicted_LB.shape[1] > 1 else 0])
        return slots - len(window_ids(self.lm, query, is_continuation=True))

    @torch.no_grad()
    def answer(self, queries: Sequence[Query], patch: Patch | None = None) -> list[Answer]:
        """Answer queries of one mode and one window in one batch. The state does not change.

        Raises:
            UserError: a query does not fit the model's positions.
        """
        if patch is None and needs_single_queries(self.method) and len(queries) > 1:
            return [self.answer([query])[0] for query in queries]
        return answer_queries(self.lm, patch or self.patch(queries), queries)

    @torch.no_grad()
    def gold_likelihoods(
        self, queries: Sequence[Query], patch: Patch | None = None
    ) -> list[tuple[float, int]]:
        """Return (summed log-probability, tokens) of the target answer of each query."""
        if patch is None and needs_single_queries(self.method) and len(queries) > 1:
            return [self.gold_likelihoods([query])[0] for query in queries]
        return gold_logprobs(self.lm, patch or self.patch(queries), queries)
