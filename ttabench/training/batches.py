"""The batches of a training: of a task, or of several that take turns (`--also NAME` or `--also NAME=SOURCE`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from ttabench.core.types import Json
from ttabench.methods.recipe import Recipe
from ttabench.records.local_paths import source_name
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM


def further(request: RunRequest, also: Sequence[str], seed: int) -> list[Plan]:
    """Further tasks, as their cards say; of the same kind of source where none is named."""
    named = [word.partition("=") for word in also]
    return [
        make_plan(replace(request, task=name, source=source or request.source, task_options=()), seed)
        for name, _, source in named
    ]


def described(others: Sequence[Plan]) -> dict[str, Json]:
    """The further tasks of a training, for its checkpoint; empty where there are none."""
    tasks: list[Json] = [
        {
            "task": one.task.card.name,
            "source": source_name(one.task.source),
            "digest": one.config.inputs.get("rows", ""),
        }
        for one in others
    ]
    return {"also": tasks} if tasks else {}


def batches(plans: Sequence[Plan], recipe: Recipe, base: LM, seed: int, accumulate: int) -> Iterator[list[Episode]]:
    """The episodes of each step: tasks take turns, a step each, and each goes through the documents of the recipe on
    its own; ends where the task whose turn it is has no more."""
    steps = -(-recipe.steps // len(plans))
    tasks = []
    for plan in plans:
        streams = [
            (plan.task.training(seed + 1_000_003 * lesson, count, recipe.questions, base),
             recipe.episodes(count) * accumulate)
            for lesson, count in enumerate(recipe.documents)
        ]  # fmt: skip
        tasks.append(lessons(streams, steps, recipe.rounds))
    for task in cycle(tasks):
        batch = next(task, None)
        if batch is None:
            return
        yield batch


def lessons(streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1) -> Iterator[list[Episode]]:
    """Batches of a curriculum: the steps are shared out evenly among the lessons, one after the other.

    Args:
        streams: for each lesson its episodes, and how many of them a step takes.
        steps: of the whole training.
        rounds: how often all lessons come in turn; with many they are mixed, not one before the other. Where steps are
            too few for so many, every step is the next lesson.
    """
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))
