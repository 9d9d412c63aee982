"""MetaICL's held-out tasks: 16 demonstrations are read one by one; after 1, 2, 4, 8 and 16 the same rows are asked.

    config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
    data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...", "options": [...]}
    data/quarel/quarel_16_100_test.jsonl

One episode a task and one pass: the queries after t demonstrations stand at step t. The run's seed 0..4 stands for the
published draws 100, 13, 21, 42 and 87 (the published order is kept: the first t rows of a draw are its demonstrations;
test rows are the same for all). CCM's protocol (arXiv 2312.03414) chooses by mean log-likelihood over the tokens of an
option (`acc_mean`); sums (`acc`) stand beside it. `pmi=true` adds what an option is worth without the input. Lengths,
and the other protocol (`protocol=genadapter`), are in `readers.metaicl_protocol`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Episode, Json, Observe, Step
from ttabench.readers.breaks import blanks_in_front
from ttabench.readers.cards import Card
from ttabench.readers.description import Bound, describe
from ttabench.readers.metaicl_files import MetaRow, MetaTask, twin_tasks, wanted_tasks
from ttabench.readers.metaicl_lengths import Count, Fitted, estimate, fitted, short
from ttabench.readers.metaicl_protocol import LAYOUTS, Settings, names, with_metrics, with_protocol
from ttabench.readers.options import resolve
from ttabench.readers.other_demonstrations import next_rows, notes_of
from ttabench.readers.others import described, with_pieces
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class MetaIcl(Bound[Settings]):
    """A `readers.Task` of MetaICL tasks."""

    tasks: Sequence[MetaTask]

    _left_out: dict[str, int] = field(init=False, default_factory=dict, compare=False)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows of the source that were not used, by task and reason.

        By the tokens of the base model once it asked for the episodes; before, four characters count as a token.
        """
        self._fits(None)
        return dict(self._left_out)

    def _fits(self, tokens: Tokens | None) -> list[Fitted]:
        count: Count = estimate if tokens is None else lambda text: len(tokens.encode(text))
        found = [fitted(task, self.settings, self.card.prompt.delimiter, count) for task in self.tasks]
        if tokens is not None or not self._left_out:
            self._left_out.clear()
            for task, fits in zip(self.tasks, found, strict=True):
                self._left_out.update({f"{task.name}: {reason}": count for reason, count in fits.dropped.items()})
        return found

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a task (see `readers.Task`)."""
        for task, fits, share in zip(self.tasks, self._fits(tokens), self._shares(), strict=True):
            steps = tuple(blanks_in_front(self._steps(fits, _spread(fits.asked, share))))
            if any(isinstance(step, Ask) for step in steps):
                yield Episode(key=self._key(task), steps=steps)

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with demonstrations of another published draw, a twin's with those of another rule."""
        found = {self._key(task): (task, fits) for task, fits in zip(self.tasks, self._fits(tokens), strict=True)}
        for episode in self.episodes(tokens):
            rows, _ = next_rows(self, *found[episode.key])
            yield with_pieces(episode, [self._observe(row) for row in rows])

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        pairs = zip(self.tasks, self._fits(None), strict=True)
        found = {task.name: (len(fits.shown), *next_rows(self, task, fits)) for task, fits in pairs}
        return described(self.others(), notes_of(found, mini=self.source == "mini"))

    def _key(self, task: MetaTask) -> str:
        return f"{self.card.name}/{task.name}/{self.split}/seed{self.seed}"

    def _shares(self) -> list[int | None]:
        """How many rows of each task are asked: `limit` counts every step of every row."""
        if self.limit is None:
            return [None] * len(self.tasks)
        rows, tasks = self.limit // len(set(self.settings.steps)), len(self.tasks)
        return [rows * (i + 1) // tasks - rows * i // tasks for i in range(tasks)]

    def _steps(self, fits: Fitted, rows: Sequence[MetaRow]) -> Iterator[Step]:
        """Demonstrations, and queries after each `step` of them, or as many as fit beside the query."""
        asks: dict[int, list[Ask]] = {}
        for step in sorted(set(self.settings.steps)):
            for row in rows:
                if (row.id, step) in fits.places:
                    asks.setdefault(fits.places[row.id, step], []).append(self._ask(row, step, f"{row.id}@{step}"))
        for number in range(len(fits.shown) + 1):
            if number:
                yield self._observe(fits.shown[number - 1])
            yield from asks.get(number, [])

    def _observe(self, row: MetaRow) -> Observe:
        layout = LAYOUTS[self.settings.layout]
        question = layout.shown.replace("{input}", row.input)
        text = f"{question}{self.card.prompt.delimiter}{row.output}"
        return Observe(text=text, key=f"{row.task}/{row.id}", joiner=layout.joiner, turns=(question, row.output))

    def _ask(self, row: MetaRow, step: int, key: str) -> Ask:
        delimiter = self.card.prompt.delimiter
        choosing = self.settings.answer == "choose"
        bare = self.settings.pmi or row.task in names(self.settings.pmi_tasks)
        return Ask(
            prompt=LAYOUTS[self.settings.layout].asked.replace("{input}", row.input),
            key=key,
            joiner=LAYOUTS[self.settings.layout].joiner,
            after_turns=True,
            mode="choose" if choosing else "generate",
            answers=(row.output,),
            options=tuple(delimiter + option for option in row.options) if choosing else (),
            gold=row.options.index(row.output) if choosing else None,
            delimiter=delimiter,
            max_new_tokens=self.settings.max_new_tokens,
            step=step,
            blank="Output:" if choosing and bare else "",
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
        pools = [short(task.pool, self.settings, self.card.prompt.delimiter, estimate) for task in self.tasks]
        number = 0
        while True:
            if self.source == "mini":
                fresh = {**self.arguments, "tasks": 1, "demonstrations": documents, "queries": questions}
                place = (self.card.splits[self.split].twin, source.getrandbits(48))
                (task,) = twin_tasks(self.card, place, fresh)
                shown, asked = task.shown, task.asked
            else:
                rows = source.choice(pools)
                drawn = tuple(source.sample(rows, min(len(rows), documents + questions)))
                border = max(0, len(drawn) - questions)
                shown, asked = drawn[:border], drawn[border:]
            asks = [self._ask(row, len(shown), f"{row.id}@{number}.{i}") for i, row in enumerate(asked)]
            name = f"{self.card.name}/{self.split}/training{seed}.{number}"
            yield Episode(key=name, steps=tuple(blanks_in_front([*map(self._observe, shown), *asks])))
            number += 1

    def describe(self) -> dict[str, Json]:
        """The task as JSON for a record; `digest` changes with any text that may be shown or asked."""
        texts = [text for task in self.tasks for row in (*task.shown, *task.spare, *task.asked) for text in _texts(row)]
        counts = {
            "parts": {task.name: len(task.asked) for task in self.tasks},
            "observed": self.n_observes,
            "questions": self.n_asks,
        }
        return describe(self, counts, texts)


def _texts(row: MetaRow) -> list[str]:
    return [row.id, row.task, row.input, row.output, *row.options]


def _spread(rows: Sequence[MetaRow], share: int | None) -> Sequence[MetaRow]:
    """`share` of the rows, evenly spaced; all of them for None."""
    if share is None or share >= len(rows):
        return rows
    return [rows[i * len(rows) // share] for i in range(share)]


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    request = with_protocol(card, request)
    settings, arguments = resolve(card, request, Settings)
    count = len(set(settings.steps))
    if request.limit is not None and request.limit < count:
        what = f"A limit of {request.limit} questions is less than one row at each of {count} steps."
        raise UserError(what, f"Give --limit {count} or more.")
    notes = [f"paper_quirks: {dict(card.quirks)}"] if settings.paper_quirks else []
    if request.source == "mini":
        tasks = twin_tasks(card, (card.splits[request.split].twin, request.seed), arguments, settings.task)
        source = "mini"
    else:
        tasks, lacking = wanted_tasks(card, request, settings.task, choosing=settings.answer == "choose")
        notes += lacking
        source = f"folder:{request.source}"
    kept = [task for task in tasks if task.name not in names(settings.omit)]
    if not kept:
        raise UserError(f"omit={settings.omit} leaves no task of {card.name}.", "Omit fewer.")
    for task in kept:
        given = len(task.shown)
        if max(settings.steps) > given:
            what = f"step {max(settings.steps)} needs more than the {given} demonstrations of {task.name}."
            raise UserError(what, f"Give --task-set steps=N,M up to {given}.")
    made = MetaIcl(
        card=with_metrics(card, settings),
        source=source,
        split=request.split,
        seed=request.seed,
        limit=request.limit,
        settings=settings,
        arguments=arguments,
        tasks=kept,
        data_notes=tuple(notes),
    )
    if not made.n_asks:
        raise UserError(f"The limits on length leave nothing to ask of {card.name}.", "Raise max_tokens.")
    return made
