"""No-context baseline: the base model as it is."""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.core.types import Chunk, Query
from ttabench.cost import NoSettings
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method
from ttabench.methods.none import NONE


class NoContext(Method[NoSettings]):
    """No-context baseline, with an empty state and an empty patch."""

    spec = NONE

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:  # noqa: ARG002
        """Return the state unchanged, without tokenising the chunks."""
        return state

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002
        """Return an empty patch."""
        return Patch()
