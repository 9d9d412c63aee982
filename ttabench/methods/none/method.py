"""No context: the base model as it is, the floor of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.core.types import Chunk, Query
from ttabench.cost import NoSettings
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.none import NONE


class NoContext(BaseMethod[NoSettings]):
    """Closed book: reads nothing, patches nothing."""

    spec = NONE

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:  # noqa: ARG002  # the contract's
        """The state as it was; the pieces are not even tokenised."""
        return state

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """Nothing."""
        return Patch()
