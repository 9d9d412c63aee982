"""The method: what needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from notebook import NOTEBOOK, NotebookSettings
from ttabench.extend import (
    LM,
    Chunk,
    LowRank,
    Patch,
    Query,
    State,
    Trainable,
    append_ids,
    new_chunk_ids,
    window_patch,
)


class Notebook(Trainable[NotebookSettings]):
    """State: the last tokens."""

    spec = NOTEBOOK

    def __init__(self, lm: LM, settings: NotebookSettings) -> None:
        super().__init__(lm, settings)
        self.map = lm.linear_names()[0]
        features_in, features_out = lm.linear_shape(self.map)
        self.a = nn.Parameter(torch.full((1, settings.rank, features_in), 0.01))
        self.b = nn.Parameter(torch.zeros(1, features_out, settings.rank))

    def modules(self) -> nn.ModuleDict:
        """Both factors."""
        return nn.ModuleDict({"factors": nn.ParameterList([self.a, self.b])})

    def adapt(self, state: State, pieces: Sequence[Sequence[Chunk]]) -> State:
        """Keep the last tokens."""
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, pieces)]
        read = [
            before + len(new) for before, new in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        kept = append_ids(self.lm, state.tensors, rows, self.settings.tokens)
        return replace(state, tensors=kept, meta={"tokens_read": read})

    def patch(self, state: State, asks: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The tokens in the window, and the delta."""
        return replace(window_patch(state.tensors), deltas={self.map: LowRank(self.a, self.b)})
