"""The batches of a training: of a task, or of several that take turns.

--also msc --also "pg19=books stride=128"      a task, its source, and options of it
--task diet.yaml                               a file of `tasks:`, a list of such words
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.methods.recipe import Recipe
from ttabench.readers.cards import yaml_of
from ttabench.records.local_paths import source_name
from ttabench.run.plan import Plan, make_plan
from ttabench.run.request import RunRequest

if TYPE_CHECKING:
    from ttabench.core.types import Episode
    from ttabench.lm.model import LM


def mixed(request: RunRequest, also: Sequence[str]) -> tuple[RunRequest, tuple[str, ...]]:
    """The first task of a mixture, and the others as words of `--also`; of another task nothing changes."""
    path = Path(request.task)
    if path.suffix not in (".yaml", ".yml") or not isinstance(data := yaml_of(path), dict) or "tasks" not in data:
        return request, tuple(also)
    words = data["tasks"]
    if len(data) > 1 or not (isinstance(words, list) and words and all(isinstance(one, str) for one in words)):
        fault = f"The mixture {path} is no list of tasks."
        raise UserError(fault, 'Write tasks: [NAME, "NAME=SOURCE OPTION=VALUE"], as --also takes them.')
    first = _taken(request, words[0])
    return replace(first, task_options=(*first.task_options, *request.task_options)), (*words[1:], *also)


def _taken(request: RunRequest, words: str) -> RunRequest:
    """The request for another task, `NAME=SOURCE OPTION=VALUE`; of the same kind of source where none is named."""
    named, *options = words.split() or [""]
    name, _, source = named.partition("=")
    return replace(request, task=name, source=source or request.source, task_options=tuple(options))


def further(request: RunRequest, also: Sequence[str], seed: int) -> list[Plan]:
    """Further tasks, as their cards and `also` say; a UserError where one cannot be used."""
    return [make_plan(_taken(request, words), seed) for words in also]


def described(others: Sequence[Plan]) -> dict[str, Json]:
    """The further tasks of a training, for its checkpoint; empty where there are none."""
    tasks: list[Json] = [
        {
            "task": one.task.card.name,
            "source": source_name(one.task.source),
            "digest": one.config.inputs.get("rows", ""),
            **({"options": list(one.request.task_options)} if one.request.task_options else {}),
        }
        for one in others
    ]
    return {"also": tasks} if tasks else {}


def batches(plans: Sequence[Plan], recipe: Recipe, base: LM, seed: int) -> Iterator[list[Episode]]:
    """The episodes of each step: tasks take turns, a step each, and each goes through the documents of the recipe on
    its own; ends where the task whose turn it is has no more. Of several tasks each reads `batch_documents` pieces."""
    steps = -(-recipe.steps // len(plans))
    tasks = []
    for plan in plans:
        streams = []
        for lesson, documents in enumerate(recipe.documents):
            episodes = plan.task.training(seed + 1_000_003 * lesson, documents, recipe.questions, base)
            first = list(islice(episodes, len(plans) > 1))  # a book of a mixture has as many pieces as it has
            read = max((len(episode.observes()) for episode in first), default=0)
            streams.append((chain(first, episodes), recipe.episodes(max(documents, read))))
        tasks.append(lessons(streams, steps, recipe.rounds))
    for task in cycle(tasks):
        batch = next(task, None)
        if batch is None:
            return
        yield batch


def lessons(streams: Sequence[tuple[Iterator[Episode], int]], steps: int, rounds: int = 1) -> Iterator[list[Episode]]:
    """Batches of a curriculum: the steps are shared out evenly among the lessons, one after the other. `streams`: for
    each lesson its episodes, and how many of them a step takes; `rounds`: how often all lessons come in turn, with many
    of which they are mixed; where steps are too few for so many, every step is the next lesson."""
    turns = len(streams) * rounds
    for step in range(steps):
        stream, count = streams[(step if steps < turns else step * turns // steps) % len(streams)]
        yield list(islice(stream, count))
