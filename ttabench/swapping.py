"""Whose state answers: the text's own, one made of another text, or an empty one. Is a gain memory, or practice?

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

from ttabench.lm import LM
from ttabench.methods.base import BaseMethod
from ttabench.readers import Task
from ttabench.types import Episode, Observe, State


def blocks(method: BaseMethod[Any], pieces: Sequence[Observe], most: int) -> Iterator[list[Observe]]:
    """Pieces as a method takes them in one call: `most` at a time, or all where it reads only once."""
    size = max(1, len(pieces)) if method.reads_once else most
    for begin in range(0, len(pieces), size):
        yield list(pieces[begin : begin + size])


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


class Replacement:
    """The state that answers in place of a text's own.

    Args:
        method: what adapts.
        other: an episode whose observations are read alongside, group by group; its queries are never asked. None for
            an empty state.
    """

    def __init__(self, method: BaseMethod[Any], other: Episode | None) -> None:
        self._method, self._state = method, method.begin(1)
        steps = groupby(other.steps if other is not None else (), lambda step: isinstance(step, Observe))
        self._groups = iter(
            [[step for step in group if isinstance(step, Observe)] for reading, group in steps if reading]
        )

    def read_on(self, most: int) -> None:
        """Read the next group of the other text, `most` pieces at a time; at its end the last state stays."""
        for block in blocks(self._method, next(self._groups, []), most):
            self._state = self._method.adapt_many(self._state, [[piece] for piece in block])

    def of(self, own: State) -> State:
        """What answers, see `replaced`."""
        return replaced(self._method, own, self._state)
