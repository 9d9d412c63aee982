"""One reader: what it has read so far, and what the frozen LM answers under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ttabench.core.types import Answer, Chunk, Query
from ttabench.lm.forward.patching import continues_text, encode_patch
from ttabench.lm.forward.tokens import window_ids
from ttabench.lm.inference.answering import answer_queries, gold_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State, boost_deltas
from ttabench.methods.base import BaseMethod

MAX_CHUNKS_PER_ADAPT = 256
"""Pieces in one call of `adapt` where the method does not care: enough to batch by length, few enough for a progress
bar to move."""


class Session:
    """A method on a base model, with a state that grows as it reads, by default from nothing. `rows`: independent
    readers, where no state says how many; `boost`: see `lm.patch.boosted`."""

    def __init__(
        self,
        lm: LM,
        method: BaseMethod[Any],
        state: State | None = None,
        *,
        rows: int = 1,
        boost: float = 1.0,
    ) -> None:
        self.lm, self.method, self._boost = lm, method, boost
        self._state = state if state is not None else method.begin(rows)
        self._unread: list[Sequence[Chunk]] = []
        self._cached_patch: tuple[tuple[Chunk, ...], Patch] | None = None

    @property
    def rows(self) -> int:
        """Independent readers."""
        return self._state.rows

    @property
    def state(self) -> State:
        """The state of all that was read."""
        self.flush()
        return self._state

    def read(self, pieces: Sequence[Chunk]) -> None:
        """Read on, one reader."""
        assert self.rows == 1, f"{self.rows} readers: use read_rows"
        self.read_rows([[chunk] for chunk in pieces])

    def read_rows(self, pieces: Sequence[Sequence[Chunk]]) -> None:
        """Read on: each of `pieces` holds one piece a reader."""
        assert all(len(row) == self.rows for row in pieces), (
            f"one piece for each of {self.rows} readers"
        )
        self._unread += pieces

    @property
    def pending(self) -> int:
        """Pieces a reader that were read and not adapted to yet."""
        return len(self._unread)

    def adapt_pending(self) -> int:
        """Adapt to as much as goes together; returns how many pieces a reader that was. A UserError where the text does
        not fit the model, or the method refuses it."""
        count = (
            min(MAX_CHUNKS_PER_ADAPT, self.pending)
            if self.method.granularity == "chunk"
            else self.pending
        )
        if count:
            self._cached_patch = None
            self._state = self.method.adapt(self._state, self._unread[:count])
            del self._unread[:count]
        return count

    def flush(self) -> None:
        """Adapt to all that was read and not adapted to yet."""
        while self.adapt_pending():
            pass

    def answer_state(self) -> State:
        """The state that answers: that of what was read, unless a subclass puts another in its place."""
        return self.state

    def patch(self, queries: Sequence[Query]) -> Patch:
        """The encoded patch for queries with one window of pieces in front of them; several readers: one query each.
        Where the method does not look at the question it is made once, for all queries until something more is read. A
        UserError where what stands in the window does not fit the model."""
        assert queries, "a patch is for queries"
        self.flush()
        if self.method.query_aware:
            return self._build_patch(queries)
        window = queries[0].window
        if self._cached_patch is None or self._cached_patch[0] != window:
            self._cached_patch = None  # the last one must not stand beside the next
            self._cached_patch = (
                window,
                self._build_patch(queries if self.rows > 1 else queries[:1]),
            )
        return self._cached_patch[1]

    def _build_patch(self, queries: Sequence[Query]) -> Patch:
        state = self.answer_state()
        patch = self.method.patch(state, queries)
        if self._boost != 1.0 and (patch.deltas or state.tensors or self.method.growth == "none"):
            patch = boost_deltas(patch, self._boost)
        patch = encode_patch(self.lm, patch)
        ids = window_ids(self.lm, queries[0], is_continuation=continues_text(patch))
        if not ids:
            return patch
        return encode_patch(
            self.lm, replace(patch, tokens_BT=torch.tensor([ids], device=self.lm.device))
        )

    def count_context_slots(self, patch: Patch, query: Query, row: int = 0) -> int:
        """Keys and values of context that a query of a row reads under its patch, in tokens, on average over heads; not
        those of its own window."""
        prefix = patch.prefix
        if prefix is None:
            return 0
        slots = prefix.keys_LBHPD[0].shape[2]
        if prefix.mask_BP is not None:
            slots = int(prefix.mask_BP[row if len(prefix.mask_BP) > 1 else 0].sum())
        if prefix.bias_LBHP is not None:
            hidden_LB = torch.stack(
                [bias.isneginf().float().mean(1).sum(1).cpu() for bias in prefix.bias_LBHP]
            )
            slots -= int(hidden_LB.mean(0)[row if hidden_LB.shape[1] > 1 else 0])
        return slots - len(window_ids(self.lm, query, is_continuation=True))

    @torch.no_grad()
    def answer(self, queries: Sequence[Query], patch: Patch | None = None) -> list[Answer]:
        """Answers to queries of one mode and one window, in one batch; asking changes nothing. A UserError where
        one does not fit the model's positions."""
        return answer_queries(self.lm, patch or self.patch(queries), queries)

    @torch.no_grad()
    def gold_likelihoods(
        self, queries: Sequence[Query], patch: Patch | None = None
    ) -> list[tuple[float, int]]:
        """(summed log-probability, tokens) of the target answer of each query."""
        return gold_logprobs(self.lm, patch or self.patch(queries), queries)
