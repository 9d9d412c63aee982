"""MyName: keeps the last tokens of the context in the window.

Check it:  ttabench check ./my_name.py
Run it:    ttabench eval --method ./my_name.py --task streamingqa
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ttabench.extend import (
    Chunk,
    Method,
    MethodSpec,
    Patch,
    Query,
    State,
    append_ids,
    new_chunk_ids,
    window_patch,
)


@dataclass(frozen=True, kw_only=True)
class MyNameSettings:
    """Settings of `my_name`: `--set tokens=32`."""

    tokens: int = 128
    """Number of last tokens kept in the window."""


class MyName(Method[MyNameSettings]):
    """State: the ids of the last tokens."""

    spec = MethodSpec(
        name="my_name",
        summary="keep the last tokens",
        Settings=MyNameSettings,
        growth="constant",  # growth of the state's bytes with the context: none, constant or linear
        test_settings=MyNameSettings(tokens=16),  # settings for the short texts of `ttabench check`
    )

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Return a new state that has read the chunks, each with one text per row of the state."""
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        counts = zip(state.meta["tokens_read"], rows, strict=True)
        read = [before + len(new) for before, new in counts]
        kept = append_ids(self.lm, state.tensors, rows, self.settings.tokens)
        return replace(state, tensors=kept, meta={"tokens_read": read})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the change of the frozen model: tokens in the window, prefix or weight deltas."""
        return window_patch(state.tensors)
