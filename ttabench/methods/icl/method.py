"""In-context learning: the full context is read once into a KV cache."""

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
from ttabench.methods.base import Method
from ttabench.methods.icl import ICL, InContextSettings
from ttabench.methods.parts.kept import (
    append_ids,
    prefix_from_tensors,
    prefix_tensors,
    window_patch,
)


class InContext(Method[InContextSettings]):
    """Full-context baseline. State: the KV cache, or the last token ids with `truncate=left`."""

    spec = ICL
    counts = ("tokens_read", "truncated_tokens")
    required_capabilities = ("cache",)

    def __init__(self, lm: LM, settings: InContextSettings) -> None:
        super().__init__(lm, settings)
        self.limit = settings.limit(lm.max_positions)

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read all chunks of a row as one text, in one pass.

        Raises:
            UserError: the context exceeds the window with truncate=error.
        """
        rows_new = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        before: list[int] = state.meta["tokens_read"]
        seen = [count + len(new) for count, new in zip(before, rows_new, strict=True)]
        if self.settings.truncate == "error" and max(seen) > self.limit:
            fault = f"The context has {max(seen)} tokens, more than max_tokens={self.limit}"
            fault = f"{fault} of the {self.lm.position_limit}"
            if not self.settings.max_tokens:
                reserved = self.lm.max_positions - self.limit
                fault = f"{fault}, with {reserved} reserved for prompt and answer"
            hint = (
                "Use --set truncate=left (keep the last tokens) or truncate=right (stop reading), "
            )
            raise UserError(f"{fault}.", f"{hint}or read fewer chunks.")
        meta = {
            "tokens_read": seen,
            "truncated_tokens": [max(0, tokens - self.limit) for tokens in seen],
        }
        if self.settings.truncate == "left":
            return replace(
                state, tensors=append_ids(self.lm, state.tensors, rows_new, self.limit), meta=meta
            )
        rows = [
            new[: max(0, self.limit - count)] for new, count in zip(rows_new, before, strict=True)
        ]
        ids_BT, mask_BT = pad(rows, self.lm.pad_id, "right", self.lm.device)
        if not ids_BT.numel():
            return replace(state, meta=meta)
        prefix = prefill(self.lm, Patch(prefix=prefix_from_tensors(state.tensors)), ids_BT, mask_BT)
        return replace(state, tensors=prefix_tensors(prefix), meta=meta)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # base class
        """Return the cache as a prefix, or the kept tokens, which are read once for all queries."""
        if "tokens" in state.tensors:
            return window_patch(state.tensors)
        return Patch(prefix=prefix_from_tensors(state.tensors))
