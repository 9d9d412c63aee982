"""MetaICL's held-out tasks: 16 demonstrations are read one by one; after 1, 2, 4, 8 and 16 the same rows are asked.

One episode a task and one pass: the queries after t demonstrations stand at step t. The run's seed 0..4 stands for the
published draws 100, 13, 21, 42 and 87 (the published order is kept: the first t rows of a draw are its demonstrations;
test rows are the same for all). Figures of the two published protocols cannot be compared:

    protocol=ccm          "Input: {x} Output: {y}", options by mean log-likelihood (`acc_mean`; sums, `acc`, stand
                          beside it), examples of at most 256 tokens, at most 1,024 in all: the last demonstrations are
                          left out beside a query where they do not fit (arXiv 2312.03414, appendix D)
    protocol=genadapter   "Input: {x}\\nOutput: {y}" and blank lines, ten greedy tokens compared in lower case, contexts
                          of more than 4,096 tokens are not asked about (arXiv 2411.05877, Section 4.2)

As in CCM's released code every query is measured beside the context apart: a long query is asked after fewer
demonstrations than a short one. In one pass it is asked once as many were read as fit beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, NamedTuple

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Generate, Json, Observe, Step, Want
from ttabench.mini.world import categories_in
from ttabench.readers.base import (
    Bound,
    Training,
    blanks_in_front,
    check_limit,
    fitting,
    in_order,
    names_in_list,
    other_seeds,
    shares,
    spread,
)
from ttabench.readers.cards import Card
from ttabench.readers.demonstrations import OTHER_ROWS, same_rules
from ttabench.readers.metaicl_files import MetaRow, MetaTask, twin_tasks, wanted_tasks
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenCount, TokenLimit, resolve
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Count, Tokens, counted_by, estimate


class Layout(NamedTuple):
    """Words around input and output, without the answer."""

    shown: str
    asked: str
    joiner: str


_LINES = "Input: {input}\nOutput:"
_INSTRUCTION = (
    "## Instruction: Based on the demonstration above, provide a short and concise answer, without any explanation or "
    "additional words.\n\n"
)
LAYOUTS = {
    "ccm": Layout("Input: {input} Output:", "Input: {input} Output:", " "),
    "genadapter": Layout(_LINES, _LINES, "\n\n"),
    "genadapter_instruction": Layout(_LINES, _INSTRUCTION + _LINES, "\n\n"),  # of Llama 2, Figure 7
}
STOPS = ("\n\n", "Input:")
"""Where the next demonstration would begin, in every layout: a base model goes on to write one."""
GENERATED = ("em_lower", "em", "em_prefix", "rougeL")
"""Metrics of answers that are written, accuracy first."""
PROTOCOLS: Mapping[str, Mapping[str, object]] = {
    "ccm": {},
    "genadapter": {
        "layout": "genadapter", "answer": "generate", "max_new_tokens": 10, "max_example_tokens": 0,
        "max_tokens": 4096, "too_long": "skip",
    },
}  # fmt: skip
"""Settings of the card that a protocol changes; options of the user win."""


class Settings(ProtocolSettings):
    """The protocol part of a card of the reader `metaicl`, and what `--task-set` may change."""

    protocol: Literal["ccm", "genadapter"] = "ccm"
    """Sets the others as one of the papers has them."""
    task: str = "all"
    """Tasks, separated by commas; "all" for every test task of the configuration."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Demonstrations after which the rows are asked."""
    layout: Literal["ccm", "genadapter", "genadapter_instruction"] = "ccm"
    """Words around input and output."""
    answer: Literal["choose", "generate"] = "choose"
    pmi: bool = False
    """Also score options after the prompt without its input (doubles the queries' cost)."""
    max_new_tokens: TokenCount = 10
    max_example_tokens: TokenLimit = 256
    """Demonstrations and queries that are longer, with their answer, are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Most tokens of the demonstrations with a query and its longest answer; 0 for no limit."""
    too_long: Literal["cut", "skip"] = "cut"
    """Past `max_tokens`: ask after as many demonstrations as fit, or do not ask."""
    omit: str = ""
    """Tasks left out, separated by commas."""
    pmi_tasks: str = ""
    """Tasks whose choice `acc_ccm` takes from `acc_pmi` and not from `acc_mean`."""
    drop_last: bool = False
    """Leave the last row of every task out."""


class Fitted(NamedTuple):
    """A task as it is run."""

    shown: Sequence[MetaRow]
    """Demonstrations in order, at most as many as were wanted."""
    asked: Sequence[MetaRow]
    places: Mapping[tuple[str, int], int]
    """After how many demonstrations a row is asked, by its id and step; those that are not asked are left out."""


@dataclass(frozen=True, kw_only=True)
class MetaIcl(Bound[Settings]):
    """A `readers.Task` of MetaICL tasks."""

    tasks: Sequence[MetaTask]

    def measured(self, tokens: Tokens | None) -> tuple[list[Fitted], dict[str, int]]:
        """(demonstrations and queries under the limits of each task, what they leave out by task and reason)."""
        size, dropped, fits = counted_by(tokens), dict[str, int](), []
        for task in self.tasks:
            fitted, counts = self._fitted(task, size)
            fits.append(fitted)
            dropped |= {f"{task.name}: {reason}": number for reason, number in counts.items() if number}
        return fits, dropped

    def _fitted(self, task: MetaTask, size: Count) -> tuple[Fitted, dict[str, int]]:
        settings, wanted = self.settings, max(self.settings.steps)
        own, asked = (self._short(rows, size) for rows in (task.shown[:wanted], task.asked))
        if settings.drop_last:
            asked = asked[:-1]
        taken = {row.pair for row in (*own, *task.asked)}
        spare = [row for row in self._short(task.spare, size) if row.pair not in taken]
        shown = [*own, *spare[: wanted - len(own)]]
        sizes = [size(self._text(row) + self._layout.joiner) for row in shown]
        fit = {row.id: self._room(row, sizes, size) for row in asked}
        wished = {(row.id, step): min(step, len(shown)) for row in asked for step in settings.steps}
        past = {key for key, number in wished.items() if number > fit[key[0]]}
        cut = settings.too_long == "cut"
        places = {key: min(number, fit[key[0]]) for key, number in wished.items() if cut or key not in past}
        read_ = max(places.values(), default=0)
        return Fitted(shown[:read_], asked, places), {
            "demonstration too long": len(task.shown[:wanted]) - len(own),
            "query too long": len(task.asked) - len(asked) - settings.drop_last,
            "last row": int(settings.drop_last),
            "no other demonstration instead": wanted - len(shown),
            "demonstration past max_tokens": len(shown) - read_,
            "query asked after fewer demonstrations" if cut else "query past max_tokens": len(past),
        }

    def _short(self, rows: Iterable[MetaRow], size: Count) -> list[MetaRow]:
        """The rows that are not longer than an example may be."""
        most = self.settings.max_example_tokens
        return [row for row in rows if not most or size(self._text(row)) <= most]

    def _room(self, row: MetaRow, sizes: Sequence[int], size: Count) -> int:
        """How many demonstrations, which take `sizes` tokens each, fit beside a query and its answer."""
        settings, answer = self.settings, self.settings.max_new_tokens
        if not settings.max_tokens:
            return len(sizes)
        if settings.answer == "choose":
            answer = max(size(self.card.prompt.delimiter + option) for option in row.options)
        return fitting(sizes, settings.max_tokens, answer + size(_filled(self._layout.asked, row)))

    @property
    def _layout(self) -> Layout:
        return LAYOUTS[self.settings.layout]

    def _text(self, row: MetaRow) -> str:
        return _filled(self._layout.shown, row) + self.card.prompt.delimiter + row.output

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, tuple[MetaTask, Fitted]]]:
        """One episode a task; `limit` counts every step of every row."""
        rows = None if self.limit is None else self.limit // len(set(self.settings.steps))
        parts = zip(self.tasks, self.fit(tokens), shares(rows, len(self.tasks)), strict=True)
        for task, fits, share in parts:
            steps = tuple(blanks_in_front(self._steps(fits, spread(fits.asked, share))))
            if any(isinstance(step, Ask) for step in steps):
                key = f"{self.card.name}/{task.name}/{self.split}/seed{self.seed}"
                yield Episode(key=key, steps=steps), (task, fits)

    def instead(self, own: tuple[MetaTask, Fitted], tokens: Tokens | None) -> Iterator[Observe]:  # noqa: ARG002
        """Demonstrations of another published draw, for a twin those of another rule."""
        (task, fits), shown = own, (*own[0].shown, *own[0].asked)
        if self.mini:
            options = len(shown[0].options)
            made = (other.shown for seed in other_seeds(self.seed)
                    for other in twin_tasks(self.card, self.split, seed, self.arguments))  # fmt: skip
            alike = (rows for rows in made if len(rows[0].options) == options)
            fresh = self.apart(shown, alike, lambda rows: categories_in(row.input for row in rows), at_worst=True)
        else:
            taken = {row.pair for row in (*fits.shown, *task.asked)}
            fresh = tuple(row for row in self._short(task.spare, estimate) if row.pair not in taken)
        return map(self._observe, fresh[: len(fits.shown)])

    def remarks_on_others(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[str]:
        """Notes on the other contexts."""
        return same_rules(pairs) if self.mini else [OTHER_ROWS]

    def _steps(self, fits: Fitted, rows: Sequence[MetaRow]) -> Iterator[Step]:
        """Demonstrations, and queries after each `step` of them, or as many as fit beside the query."""
        pieces = [self._observe(row) for row in fits.shown]
        keys = [(row, step) for step in sorted(set(self.settings.steps)) for row in rows]
        asked = [(fits.places[row.id, step], row, step) for row, step in keys if (row.id, step) in fits.places]
        yield from in_order(pieces, ((place, self._ask(row, step, f"{row.id}@{step}")) for place, row, step in asked))
        yield from pieces[max((place for place, *_ in asked), default=0) :]

    def _observe(self, row: MetaRow) -> Observe:
        turns = (_filled(self._layout.shown, row), row.output)
        return Observe(text=self._text(row), key=f"{row.task}/{row.id}", joiner=self._layout.joiner, turns=turns)

    def _ask(self, row: MetaRow, step: int, key: str) -> Ask:
        return Ask(
            prompt=_filled(self._layout.asked, row),
            key=key,
            want=self._want(row),
            joiner=self._layout.joiner,
            after_turns=True,
            subtask=row.task,
            at=At(step),
        )

    def _want(self, row: MetaRow) -> Want:
        if self.settings.answer == "generate":
            delimiter, length = self.card.prompt.delimiter, self.settings.max_new_tokens
            return Generate(answers=(row.output,), delimiter=delimiter, max_new_tokens=length, stops=STOPS)
        bare = self.settings.pmi or row.task in names_in_list(self.settings.pmi_tasks)
        return self.card.prompt.chosen(row.options, row.output, "Output:" if bare else "")

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """One task each: `documents` demonstrations, then `questions` other rows of the task.

        Files give the training rows of all published draws of the configuration's training tasks (`split=train`); a
        mini source draws a new rule for every episode.
        """
        pools = [self._short(task.pool, estimate) for task in self.tasks]
        size = {"tasks": 1, "demonstrations": training.documents, "queries": training.questions}
        for number in count():
            if self.mini:
                (task,) = twin_tasks(self.card, self.split, training.draws.getrandbits(48), {**self.arguments, **size})
                demonstrations, asked = task.shown, task.asked
            else:
                demonstrations, asked = training.split(training.draws.choice(pools))
            asks = [self._ask(row, len(demonstrations), f"{row.id}@{number}.{i}") for i, row in enumerate(asked)]
            yield self.split, blanks_in_front([*map(self._observe, demonstrations), *asks])

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


def _filled(words: str, row: MetaRow) -> str:
    return words.replace("{input}", row.input)


def with_metrics(card: Card, settings: Settings) -> Card:
    """The card with the metrics that the way of answering has."""
    if settings.answer == "generate":
        return card.model_copy(update={"metrics": GENERATED, "main_metric": "em_lower"})
    if settings.pmi_tasks:
        card = card.model_copy(update={"metrics": ("acc_ccm", *card.metrics), "main_metric": "acc_ccm"})
    if settings.pmi:
        card = card.model_copy(update={"metrics": (*card.metrics, "acc_pmi")})
    return card


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    chosen = request.options.get("protocol", card.protocol.get("protocol", "ccm"))
    request = replace(request, options={**PROTOCOLS.get(str(chosen), {}), **request.options})
    settings, arguments = resolve(card, request, Settings)
    check_limit(request.limit, len(set(settings.steps)), "row")
    source, lacking = "mini", list[str]()
    if request.source == "mini":
        tasks = twin_tasks(card, request.split, request.seed, arguments, settings.task)
    else:
        source = f"folder:{request.source}"
        tasks, lacking = wanted_tasks(card, request, settings.task, choosing=settings.answer == "choose")
    kept = [task for task in tasks if task.name not in names_in_list(settings.omit)]
    given = min((len(task.shown) for task in kept), default=0)
    if max(settings.steps) > given:
        fault = f"step {max(settings.steps)} needs more than the {given} demonstrations that tasks of {card.name} have."
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
