"""The method, a trainable one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from my_name import MY_NAME, MyNameSettings
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


class MyName(Trainable[MyNameSettings]):
    """State: the ids of the last tokens."""

    spec = MY_NAME

    def __init__(self, lm: LM, settings: MyNameSettings) -> None:
        super().__init__(lm, settings)
        self.map = lm.linear_names()[0]
        features_in, features_out = lm.linear_shape(self.map)
        self.a = nn.Parameter(torch.full((1, settings.rank, features_in), 0.01))
        self.b = nn.Parameter(torch.zeros(1, features_out, settings.rank))

    def modules(self) -> nn.ModuleDict:
        """Return the parameters that `ttabench train` trains."""
        return nn.ModuleDict({"factors": nn.ParameterList([self.a, self.b])})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Return a new state with the last tokens."""
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        counts = zip(state.meta["tokens_read"], rows, strict=True)
        read = [before + len(new) for before, new in counts]
        kept = append_ids(self.lm, state.tensors, rows, self.settings.tokens)
        return replace(state, tensors=kept, meta={"tokens_read": read})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the tokens in the window, and the delta."""
        return replace(window_patch(state.tensors), deltas={self.map: LowRank(self.a, self.b)})
