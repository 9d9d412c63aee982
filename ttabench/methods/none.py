"""No context: the base model as it is, the floor of every comparison.

"Where does Ada Voss live?"  ->  whatever the weights know
"""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.methods.base import BaseMethod, NoSettings
from ttabench.types import Ask, Growth, Observe, Patch, State


class NoContext(BaseMethod[NoSettings]):
    """Closed book: reads nothing, patches nothing."""

    name = "none"
    summary = "closed book: the base model without any context"
    growth: Growth = "none"

    def adapt(self, state: State, chunk: Sequence[Observe]) -> State:  # noqa: ARG002  # the contract's arguments
        """The state as it was; the pieces are not even tokenised."""
        return state

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """Nothing."""
        return Patch()
