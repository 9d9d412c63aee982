"""Batches of training episodes, by the curriculum of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from ttabench.methods.spec import Recipe
from ttabench.run.plan import Plan

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM


def make_batches(
    plans: Sequence[Plan], recipe: Recipe, base: LM, seed: int
) -> Iterator[list[Episode]]:
    """Yield the episodes of each step; tasks take turns, one step each.

    Each task goes through the recipe's documents separately. The stream ends when a task has no
    more. In a mixture, each step of a task reads `batch_documents` chunks.
    """
    steps = -(-recipe.steps // len(plans))
    tasks = []
    for plan in plans:
        streams = []
        for index, documents in enumerate(recipe.documents):
            episodes = plan.task.training_episodes(
                seed + 1_000_003 * index, documents, recipe.questions, base
            )
            first = list(islice(episodes, 1)) if len(plans) > 1 else []
            # a book in a mixture may have more chunks than `documents`
            n_chunks = max((len(episode.chunks()) for episode in first), default=0)
            streams.append((chain(first, episodes), recipe.episodes(max(documents, n_chunks))))
        tasks.append(curriculum_batches(streams, steps, recipe.rounds))
    yield from chain.from_iterable(zip(*tasks, strict=True))


def curriculum_batches(
    streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1
) -> Iterator[list[Episode]]:
    """Yield the batches of a curriculum: the steps are divided evenly among its parts, in sequence.

    Args:
        streams: for each part its episodes, and how many of them a step takes.
        rounds: number of passes over all parts; many rounds mix them. If there are fewer steps than
            parts times rounds, every step takes the next part.
    """
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))
