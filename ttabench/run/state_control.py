"""Whose state answers: the text's own, one made of another text, or none. Does it hold this text, or only the format?

    own      Observe(a1), Ask(qa)                  state of a1 answers qa
    other    Observe(a1), Ask(qa) beside b1        state of b1 answers qa: what any such context gives
    none     Observe(a1), Ask(qa)                  an empty state answers qa

A state that only makes the model better at texts of this kind helps as much when it comes from another text. What the
own state gains beyond that is memory. What stands in the window is always the text's own: the tensors that a method
names in `own_tensors`, and the pieces a task keeps there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ttabench.core.types import Episode, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers import Task


def paired(task: Task, lm: LM, state_of: str) -> Iterator[tuple[Episode, Episode | None]]:
    """Every episode of a task, with the one whose observations take the place of its own (None: they do not).

    Raises:
        UserError: the source of the task has no other context.
    """
    if state_of != "other":
        yield from ((episode, None) for episode in task.episodes(lm))
        return
    for episode, other in zip(task.episodes(lm), task.others(lm), strict=True):
        assert episode.key == other.key, f"{other.key} stands in for {episode.key}"
        yield episode, other


def replaced(method: BaseMethod[Any], own: State, other: State) -> State:
    """The other state, with what stands in the window of the own one."""
    window = {name: own.tensors[name] for name in method.own_tensors if name in own.tensors}
    kept = {name: tensor for name, tensor in other.tensors.items() if name not in method.own_tensors}
    return replace(other, tensors={**kept, **window})


class SwappedSession(Session):
    """A session that answers under the state of another text, or under an empty one; its own state reads only what
    stands in the window, see `BaseMethod.adapt_window`.

    Args:
        lm: the base model.
        method: on that model.
        other: an episode whose observations are read alongside, group by group; its queries are never asked. At its end
            the last state stays. None for an empty state.
    """

    def __init__(self, lm: LM, method: BaseMethod[Any], other: Episode | None) -> None:
        super().__init__(lm, method)
        self._other = Session(lm, method)
        steps = groupby(other.steps if other is not None else (), lambda step: isinstance(step, Observe))
        self._groups = iter(
            [[step for step in group if isinstance(step, Observe)] for reading, group in steps if reading]
        )

    def read(self, pieces: Sequence[Observe]) -> None:
        """Read on, and as far in the other text."""
        super().read(pieces)
        self._other.read(next(self._groups, []))

    def flush(self) -> None:
        """As `Session.flush`, of the other text too."""
        super().flush()
        self._other.flush()

    def _adapted(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        return self.method.adapt_window(state, pieces)

    def answering(self) -> State:
        """The other text's state, or an empty one, with what stands in the window of the own text."""
        return replaced(self.method, self.state, self._other.state)
