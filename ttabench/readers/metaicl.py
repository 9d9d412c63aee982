"""MetaICL's held-out tasks: 16 demonstrations are read one by one; after 1, 2, 4, 8 and 16 the same rows are asked.

    config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
    data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...", "options": [...]}
    data/quarel/quarel_16_100_test.jsonl

One episode a task and one pass: the queries after t demonstrations stand at step t. The run's seed 0..4 stands for the
published draws 100, 13, 21, 42 and 87 (the published order is kept: the first t rows of a draw are its demonstrations;
test rows are the same for all). CCM's protocol (arXiv 2312.03414) chooses by mean log-likelihood over the tokens of an
option (`acc_mean`); sums (`acc`) stand beside it. `answer=generate` decodes greedily and compares (Generative Adapter,
arXiv 2411.05877), `pmi=true` adds what an option is worth without the input.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ttabench.errors import UserError
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.description import describe
from ttabench.readers.metaicl_files import MetaRow, MetaTask, twin_tasks, wanted_tasks
from ttabench.readers.options import ProtocolSettings, resolve
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Tokens
from ttabench.types import Ask, Episode, Json, Observe, Step

LAYOUTS = {
    "ccm": ("Input: {input} Output:", " "),
    "genadapter": ("Input: {input}\nOutput:", "\n\n"),
}
"""Query, and what stands between demonstrations, by name of the layout."""


def _steps(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    task: str = "all"
    """Tasks, separated by commas; "all" for every test task of the configuration."""
    steps: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), BeforeValidator(_steps)] = (
        1, 2, 4, 8, 16,
    )  # fmt: skip
    """Demonstrations after which the rows are asked."""
    layout: Literal["ccm", "genadapter"] = "ccm"
    """Words around input and output."""
    answer: Literal["choose", "generate"] = "choose"
    pmi: bool = False
    """Also score options after the prompt without its input (doubles the queries' cost)."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 10


@dataclass(frozen=True, kw_only=True)
class MetaIcl:
    """A `readers.Task` of MetaICL tasks."""

    card: Card
    source: str
    split: str
    seed: int
    limit: int | None
    settings: Settings
    arguments: Mapping[str, Scalar]
    tasks: Sequence[MetaTask]
    notes: tuple[str, ...] = ()

    @cached_property
    def dropped(self) -> Mapping[str, int]:
        """Rows of the source that were not used, by task and reason."""
        return {f"{task.name}: {reason}": count for task in self.tasks for reason, count in task.dropped.items()}

    @cached_property
    def n_observes(self) -> int:
        """Demonstrations over all episodes."""
        return sum(len(episode.observes()) for episode in self.episodes())

    @cached_property
    def n_asks(self) -> int:
        """Queries over all episodes and steps."""
        return sum(len(episode.asks()) for episode in self.episodes())

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002
        """One episode a task (see `readers.Task`)."""
        for task, share in zip(self.tasks, self._shares(), strict=True):
            rows = _spread(task.asked, share)
            if rows:
                key = f"{self.card.name}/{task.name}/{self.split}/seed{self.seed}"
                yield Episode(key=key, steps=tuple(self._steps(task, rows)))

    def _shares(self) -> list[int | None]:
        """How many rows of each task are asked: `limit` counts every step of every row."""
        if self.limit is None:
            return [None] * len(self.tasks)
        rows, tasks = self.limit // len(set(self.settings.steps)), len(self.tasks)
        return [rows * (i + 1) // tasks - rows * i // tasks for i in range(tasks)]

    def _steps(self, task: MetaTask, rows: Sequence[MetaRow]) -> Iterator[Step]:
        steps = sorted(set(self.settings.steps))
        for number in range(steps[-1] + 1):
            if number:
                yield self._observe(task.shown[number - 1])
            if number in steps:
                for row in rows:
                    yield self._ask(row, number, f"{row.id}@{number}")

    def _observe(self, row: MetaRow) -> Observe:
        query, joiner = LAYOUTS[self.settings.layout]
        text = f"{query.replace('{input}', row.input)}{self.card.prompt.delimiter}{row.output}"
        return Observe(text=text, key=f"{row.task}/{row.id}", joiner=joiner)

    def _ask(self, row: MetaRow, step: int, key: str) -> Ask:
        query, _ = LAYOUTS[self.settings.layout]
        delimiter = self.card.prompt.delimiter
        choosing = self.settings.answer == "choose"
        return Ask(
            prompt=query.replace("{input}", row.input),
            key=key,
            mode="choose" if choosing else "generate",
            answers=(row.output,),
            options=tuple(delimiter + option for option in row.options) if choosing else (),
            gold=row.options.index(row.output) if choosing else None,
            delimiter=delimiter,
            max_new_tokens=self.settings.max_new_tokens,
            step=step,
            blank="Output:" if choosing and self.settings.pmi else "",
            part=row.task,
        )

    def training(
        self,
        seed: int,
        documents: int,
        questions: int = 1,
        tokens: Tokens | None = None,  # noqa: ARG002
    ) -> Iterator[Episode]:
        """Endless episodes of one task each: `documents` demonstrations, then `questions` other rows of the task.

        Files give the training rows of all published draws of the configuration's training tasks (`split=train`); a
        mini source draws a new rule for every episode.
        """
        assert min(documents, questions) > 0, f"{documents} documents with {questions} questions make no episode"
        source = random.Random(f"training {self.card.name} {self.split} {seed}")
        number = 0
        while True:
            if self.source == "mini":
                fresh = {**self.arguments, "tasks": 1, "demonstrations": documents, "queries": questions}
                place = (self.card.splits[self.split].twin, source.getrandbits(48))
                (task,) = twin_tasks(self.card, place, fresh)
                shown, asked = task.shown, task.asked
            else:
                rows = source.choice([task.pool for task in self.tasks])
                drawn = tuple(source.sample(rows, min(len(rows), documents + questions)))
                border = max(0, len(drawn) - questions)
                shown, asked = drawn[:border], drawn[border:]
            asks = [self._ask(row, len(shown), f"{row.id}@{number}.{i}") for i, row in enumerate(asked)]
            name = f"{self.card.name}/{self.split}/training{seed}.{number}"
            yield Episode(key=name, steps=(*map(self._observe, shown), *asks))
            number += 1

    def describe(self) -> dict[str, Json]:
        """The task as JSON for a record; `digest` changes with any text shown or asked, or their order."""
        texts = [text for episode in self.episodes() for step in episode.steps for text in _texts(step)]
        counts = {
            "parts": {task.name: len(task.asked) for task in self.tasks},
            "observed": self.n_observes,
            "questions": self.n_asks,
        }
        return describe(self, counts, texts)


def _texts(step: Step) -> list[str]:
    if isinstance(step, Observe):
        return [step.text]
    return [step.key, step.prompt, *step.options, *step.answers]


def _spread(rows: Sequence[MetaRow], share: int | None) -> Sequence[MetaRow]:
    """`share` of the rows, evenly spaced; all of them for None."""
    if share is None or share >= len(rows):
        return rows
    return [rows[i * len(rows) // share] for i in range(share)]


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    count = len(set(settings.steps))
    if request.limit is not None and request.limit < count:
        what = f"A limit of {request.limit} questions is less than one row at each of {count} steps."
        raise UserError(what, f"Give --limit {count} or more.")
    if settings.answer == "generate":
        card = card.model_copy(update={"metrics": ("em", "em_prefix"), "main_metric": "em"})
    elif settings.pmi:
        card = card.model_copy(update={"metrics": (*card.metrics, "acc_pmi")})
    notes: list[str] = []
    if request.source == "mini":
        tasks = twin_tasks(card, (card.splits[request.split].twin, request.seed), arguments, settings.task)
        source = "mini"
    else:
        tasks, notes = wanted_tasks(card, request, settings.task, choosing=settings.answer == "choose")
        source = f"folder:{request.source}"
    longest = max(settings.steps)
    for task in tasks:
        if longest > len(task.shown):
            what = f"step {longest} needs more than the {len(task.shown)} demonstrations of {task.name}."
            raise UserError(what, f"Give --task-set steps=N,M up to {len(task.shown)}.")
    return MetaIcl(
        card=card,
        source=source,
        split=request.split,
        seed=request.seed,
        limit=request.limit,
        settings=settings,
        arguments=arguments,
        tasks=[replace(task, shown=task.shown[:longest]) for task in tasks],
        notes=tuple(notes),
    )
