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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Choose, Episode, Generate, Json, Observe, Step, Want
from ttabench.readers.base import Bound, Training, shares, spread
from ttabench.readers.breaks import blanks_in_front
from ttabench.readers.cards import Card
from ttabench.readers.control_contexts import with_pieces
from ttabench.readers.control_demonstrations import next_rows, notes_of
from ttabench.readers.description import described
from ttabench.readers.metaicl_files import MetaRow, MetaTask, twin_tasks, wanted_tasks
from ttabench.readers.metaicl_lengths import Fitted, fitted, short
from ttabench.readers.metaicl_protocol import LAYOUTS, STOPS, Settings, names, with_metrics, with_protocol
from ttabench.readers.protocol_options import resolve
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Tokens, counted_by, estimate


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
        count = counted_by(tokens)
        fitted_tasks = [fitted(task, self.settings, self.card.prompt.delimiter, count) for task in self.tasks]
        if tokens is not None or not self._left_out:
            self._left_out.clear()
            for task, fits in zip(self.tasks, fitted_tasks, strict=True):
                self._left_out.update({f"{task.name}: {reason}": count for reason, count in fits.dropped.items()})
        return fitted_tasks

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a task (see `readers.Task`)."""
        for task, fits, share in zip(self.tasks, self._fits(tokens), self._shares(), strict=True):
            steps = tuple(blanks_in_front(self._steps(fits, spread(fits.asked, share))))
            if any(isinstance(step, Ask) for step in steps):
                yield Episode(key=self._key(task), steps=steps)

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with demonstrations of another published draw, a twin's with those of another rule."""
        fits_by_key = {self._key(task): (task, fits) for task, fits in zip(self.tasks, self._fits(tokens), strict=True)}
        for episode in self.episodes(tokens):
            rows, _ = next_rows(self, *fits_by_key[episode.key])
            yield with_pieces(episode, [self._observe(row) for row in rows])

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        pairs = zip(self.tasks, self._fits(None), strict=True)
        rows_by_task = {task.name: (len(fits.shown), *next_rows(self, task, fits)) for task, fits in pairs}
        return described(self.others(), notes_of(rows_by_task, mini=self.mini))

    def _key(self, task: MetaTask) -> str:
        return f"{self.card.name}/{task.name}/{self.split}/seed{self.seed}"

    def _shares(self) -> list[int | None]:
        """How many rows of each task are asked: `limit` counts every step of every row."""
        rows = None if self.limit is None else self.limit // len(set(self.settings.steps))
        return shares(rows, len(self.tasks))

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
        return Ask(
            prompt=LAYOUTS[self.settings.layout].asked.replace("{input}", row.input),
            key=key,
            want=self._want(row),
            joiner=LAYOUTS[self.settings.layout].joiner,
            after_turns=True,
            subtask=row.task,
            at=At(step),
        )

    def _want(self, row: MetaRow) -> Want:
        delimiter = self.card.prompt.delimiter
        if self.settings.answer == "generate":
            length = self.settings.max_new_tokens
            return Generate(answers=(row.output,), delimiter=delimiter, max_new_tokens=length, stops=STOPS)
        bare = self.settings.pmi or row.task in names(self.settings.pmi_tasks)
        return Choose(
            options=tuple(delimiter + option for option in row.options),
            gold=row.options.index(row.output),
            delimiter=delimiter,
            unconditional_prompt="Output:" if bare else "",
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """One task each: `documents` demonstrations, then `questions` other rows of the task.

        Files give the training rows of all published draws of the configuration's training tasks (`split=train`); a
        mini source draws a new rule for every episode.
        """
        pools = [short(task.pool, self.settings, self.card.prompt.delimiter, estimate) for task in self.tasks]
        for number in count():
            demonstrations, asked = self._fresh(training) if self.mini else training.split(training.draws.choice(pools))
            asks = [self._ask(row, len(demonstrations), f"{row.id}@{number}.{i}") for i, row in enumerate(asked)]
            yield self.split, blanks_in_front([*map(self._observe, demonstrations), *asks])

    def _fresh(self, training: Training) -> tuple[Sequence[MetaRow], Sequence[MetaRow]]:
        """(demonstrations, rows to ask) of a rule of their own."""
        size = {"tasks": 1, "demonstrations": training.documents, "queries": training.questions}
        place = (self.card.splits[self.split].twin, training.draws.getrandbits(48))
        (task,) = twin_tasks(self.card, place, {**self.arguments, **size})
        return task.shown, task.asked

    def counts(self) -> dict[str, Json]:
        """Rows that may be asked of each task; what is read and asked of all."""
        return {
            "parts": {task.name: len(task.asked) for task in self.tasks},
            "observed": self.n_observes,
            "questions": self.n_asks,
        }

    def texts(self) -> Iterator[str]:
        """Every text that may be shown or asked."""
        for task in self.tasks:
            for row in (*task.shown, *task.spare, *task.asked):
                yield from (row.id, row.task, row.input, row.output, *row.options)


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    request = with_protocol(card, request)
    settings, arguments = resolve(card, request, Settings)
    least = len(set(settings.steps))
    if request.limit is not None and request.limit < least:
        fault = f"A limit of {request.limit} questions is less than one row at each of {least} steps."
        raise UserError(fault, f"Give --limit {least} or more.")
    lacking: Sequence[str] = ()
    if request.source == "mini":
        tasks = twin_tasks(card, (card.splits[request.split].twin, request.seed), arguments, settings.task)
        source = "mini"
    else:
        tasks, lacking = wanted_tasks(card, request, settings.task, choosing=settings.answer == "choose")
        source = f"folder:{request.source}"
    kept = [task for task in tasks if task.name not in names(settings.omit)]
    if not kept:
        raise UserError(f"omit={settings.omit} leaves no task of {card.name}.", "Omit fewer.")
    for task in kept:
        given = len(task.shown)
        if max(settings.steps) > given:
            fault = f"step {max(settings.steps)} needs more than the {given} demonstrations of {task.name}."
            raise UserError(fault, f"Give --task-set steps=N,M up to {given}.")
    made = MetaIcl(
        card=with_metrics(card, settings),
        request=request,
        settings=settings,
        arguments=arguments,
        source=source,
        tasks=kept,
        data_notes=tuple(lacking),
        unused={f"{task.name}: {reason}": rows for task in kept for reason, rows in task.dropped.items()},
    )
    if not made.n_asks:
        raise UserError(f"The limits on length leave nothing to ask of {card.name}.", "Raise max_tokens.")
    return made
