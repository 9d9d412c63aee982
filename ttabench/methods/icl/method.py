"""In-context learning: everything observed stands in the window, as a key/value cache that is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import prefill
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.icl import ICL, RESERVED_TOKENS, InContextSettings
from ttabench.methods.parts.kept import (
    append_ids,
    prefix_from_tensors,
    prefix_tensors,
    window_patch,
)


class InContext(BaseMethod[InContextSettings]):
    """Full context. State: the cache (keys, values), or the newest token ids with `truncate=left`."""

    spec = ICL
    counts = ("tokens_read", "truncated_tokens")
    required_capabilities = ("cache",)

    def __init__(self, lm: LM, settings: InContextSettings) -> None:
        super().__init__(lm, settings)
        self.limit = settings.limit(lm.max_positions)

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read all pieces of a row as one text: the same keys and values, one pass."""
        rows_new = [list(chain(*pieces)) for pieces in new_chunk_ids(self.lm, state, chunks)]
        before: list[int] = state.meta["tokens_read"]
        seen = [before[row] + len(new) for row, new in enumerate(rows_new)]
        if self.settings.truncate == "error" and max(seen) > self.limit:
            kept = (
                ""
                if self.settings.max_tokens
                else f", as {RESERVED_TOKENS} are left for prompt and answer"
            )
            fault = f"The context has {max(seen)} tokens, more than max_tokens={self.limit} of the {self.lm.position_limit}{kept}."
            hint = "Use --set truncate=left (keep the newest) or truncate=right (stop reading), or read fewer pieces."
            raise UserError(fault, hint)
        meta = {
            "tokens_read": seen,
            "truncated_tokens": [max(0, tokens - self.limit) for tokens in seen],
        }
        if self.settings.truncate == "left":
            return replace(
                state, tensors=append_ids(self.lm, state.tensors, rows_new, self.limit), meta=meta
            )
        rooms = [max(0, self.limit - tokens) for tokens in before]
        rows = [new[:room] for new, room in zip(rows_new, rooms, strict=True)]
        ids_BT, mask_BT = (part.to(self.lm.device) for part in pad(rows, self.lm.pad_id, "right"))
        if not ids_BT.numel():
            return replace(state, meta=meta)
        prefix = prefill(self.lm, Patch(prefix=prefix_from_tensors(state.tensors)), ids_BT, mask_BT)
        return replace(state, tensors=prefix_tensors(prefix), meta=meta)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The cache as a prefix, or the kept tokens, which the runner reads once for all queries."""
        return (
            window_patch(state.tensors)
            if "tokens" in state.tensors
            else Patch(prefix=prefix_from_tensors(state.tensors))
        )
