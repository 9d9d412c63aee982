"""Demonstration tasks: k labelled rows are read, then every test row is asked as a choice (StreamAdapter's protocol).

    task = load("superglue", options={"task": "boolq,cb", "shots": "16"})
    # one episode a sub-task: 16 x Observe("...\\nQuestion: ...?\\nAnswer: yes"), then Ask(mode="choose") a test row

The demonstrations of a sub-task are drawn once a seed, uniformly and without replacement, and are the same for every
method; with one seed fewer are the first of more, so a curve over `shots` nests. Of them the oldest `ratio` are adapted
to, the rest stand in the window in front of every query whatever the method does (arXiv 2411.09289, Table 9), read once
for all queries. Under full context (`icl`) every ratio gives the same text and so the same answers.

Texts and tokens are lm-evaluation-harness's, and so is every score: breaks and blanks between demonstrations go to the
front of the next (see `stream`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Annotated

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Choose, Episode, Json, Observe, Step, wanted
from ttabench.readers.base import Bound, Training, shares, spread
from ttabench.readers.breaks import blanks_in_front
from ttabench.readers.cards import Card
from ttabench.readers.choices import Item
from ttabench.readers.control_contexts import with_pieces
from ttabench.readers.control_demonstrations import next_items, notes_of
from ttabench.readers.description import described
from ttabench.readers.protocol_options import ProtocolSettings, resolve
from ttabench.readers.sources import Request
from ttabench.readers.subtasks import Drawn, Part, Wanted, Words, chosen, parts, twin_part
from ttabench.readers.tokens import Tokens


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    task: str = "all"
    """Sub-tasks, separated by commas; "all" for every one of the card."""
    shots: Annotated[int, Field(ge=0)] = 10
    """Demonstrations."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the demonstrations that is adapted to; the newest others stay in the window, at least one of them."""
    template: str = "lm_eval"
    """Words of the queries; demonstrations always use those of lm-evaluation-harness."""
    copa_single_blank: bool = False
    """One blank before COPA's options; lm-evaluation-harness has two."""
    size: str = ""
    """Of the training rows that are published in several sizes (WinoGrande: xs, s, m, l, xl); the largest one there."""

    @model_serializer(mode="wrap")
    def _without_the_usual_size(self, handler: SerializerFunctionWrapHandler) -> dict[str, Json]:
        values: dict[str, Json] = handler(self)
        return {key: value for key, value in values.items() if key != "size" or value}

    @property
    def kept(self) -> int:
        """Demonstrations that are not adapted to."""
        if self.ratio == 1 or self.shots < 2:
            return self.shots if self.ratio == 0 else 0
        return min(self.shots, max(1, round((1 - self.ratio) * self.shots)))


@dataclass(frozen=True, kw_only=True)
class Demonstrations(Bound[Settings]):
    """A `readers.Task` of demonstrations and choices."""

    drawn: Sequence[Drawn]

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002
        """One episode a sub-task (see `readers.Task`)."""
        for one in self.drawn:
            name = one.part.name
            pieces = [self._observe(name, item) for item in one.shown]
            border = len(pieces) - self.settings.kept
            asks = [self._ask(name, item, item.id, len(pieces)) for item in one.asked]
            text = list(blanks_in_front([*pieces, *asks]))
            window = tuple(step for step in text[border : len(pieces)] if isinstance(step, Observe))
            asked = [replace(step, window=window) for step in text[len(pieces) :] if isinstance(step, Ask)]
            if asked:
                key = f"{self.card.name}/{name}/{self.split}/seed{self.seed}"
                yield Episode(key=key, steps=(*text[:border], *asked))

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next demonstrations of the same draw, a twin's with those of another rule."""
        asked = (one for one in self.drawn if one.asked)
        for one, episode in zip(asked, self.episodes(tokens), strict=True):
            items, _ = self._next[one.part.name]
            yield with_pieces(episode, [self._observe(one.part.name, item) for item in items])

    @cached_property
    def _next(self) -> Mapping[str, tuple[tuple[Item, ...], bool]]:
        return {one.part.name: next_items(self, one) for one in self.drawn if one.asked}

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        rows_by_task = {name: (self.settings.shots, *rows) for name, rows in self._next.items()}
        return described(self.others(), notes_of(rows_by_task, mini=self.mini))

    def _observe(self, part: str, item: Item) -> Observe:
        prompt = self.card.prompt
        turns = item.turns(prompt.delimiter)
        return Observe(text=item.shown, key=f"{part}/{item.id}", joiner=prompt.joiner, turns=turns)

    def _ask(self, part: str, item: Item, key: str, demonstrations_read: int, template: str = "") -> Ask:
        prompt = self.card.prompt
        return Ask(
            prompt=item.prompts[template or self.settings.template],
            key=key,
            want=item.choose(prompt.delimiter),
            joiner=prompt.joiner,
            after_turns=True,
            subtask=part,
            at=At(demonstrations_read),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """One sub-task each: `documents` demonstrations, then `questions` other rows of its pool.

        A mini source draws a new rule for every episode; of files only the training rows are used. All demonstrations
        are adapted to, and queries have the words of the demonstrations. A smaller pool gives smaller episodes.
        """
        for number in count():
            part = training.draws.choice([one.part for one in self.drawn])
            demonstrations, asked = self._drawn_rows(part, training)
            pieces = [self._observe(part.name, item) for item in demonstrations]
            asks = [
                self._ask(part.name, item, f"{item.id}@{number}.{i}", len(pieces), "lm_eval")
                for i, item in enumerate(asked)
            ]
            yield f"{part.name}/{self.split}", blanks_in_front([*pieces, *asks])

    def _drawn_rows(self, part: Part, training: Training) -> tuple[Sequence[Item], Sequence[Item]]:
        """(demonstrations, rows to ask)."""
        if not self.mini:
            return training.split(part.pool)
        fresh = {"demonstrations": training.documents, "queries": training.questions}
        place = (self.card.splits[self.split].twin, training.draws.getrandbits(48))
        made = twin_part(self.card, part.name, place, {**self.arguments, **fresh}, _words(self))
        return made.draw(min(training.documents, len(made.pool)), 0)

    def counts(self) -> dict[str, Json]:
        """Queries of each sub-task, and of all."""
        return {
            "parts": {one.part.name: len(one.asked) for one in self.drawn},
            "observed": self.n_observes,
            "questions": self.n_asks,
        }

    def texts(self) -> Iterator[str]:
        """Every text shown or asked."""
        return (text for episode in self.episodes() for step in episode.steps for text in _texts(step))


def _texts(step: Observe | Ask) -> list[str]:
    if isinstance(step, Observe):
        return [step.text]
    (want,) = wanted([step], Choose)
    window = (piece.text for piece in step.window)
    return [step.key, *window, step.prompt, *want.option_prefixes, *want.options, str(want.gold)]


def _words(task: Demonstrations) -> Words:
    return Words(delimiter=task.card.prompt.delimiter, single_blank=task.settings.copa_single_blank)


def read(card: Card, request: Request) -> Demonstrations:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    names, notes = _with_template(card, settings)
    words = Words(delimiter=card.prompt.delimiter, single_blank=settings.copa_single_blank)
    if request.source == "mini":
        place = (card.splits[request.split].twin, request.seed)
        if settings.size:
            raise UserError(f"size={settings.size}: the miniature world has one size.", "Ask for demonstrations=N.")
        twins = [twin_part(card, name, place, arguments, words) for name in names]
    else:
        which = Wanted(names=names, explicit=settings.task != "all", size=settings.size)
        twins, of_source = parts(card, request, which, words)
        notes += of_source
    drawn = [Drawn(part=part, shown=demonstrations, asked=asked) for part in twins
             for demonstrations, asked in [part.draw(settings.shots, request.seed)]]  # fmt: skip
    return Demonstrations(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=_label(request, [part.label for part in twins]),
        drawn=_limited(drawn, request.limit),
        data_notes=tuple(notes),
        unused={f"{part.name}: {reason}": rows for part in twins for reason, rows in part.dropped.items()},
    )


def _label(request: Request, labels: Sequence[str]) -> str:
    kind = labels[0].partition(":")[0]
    return f"{kind}:{request.source}" if kind in ("folder", "file") else "+".join(dict.fromkeys(labels))


def _with_template(card: Card, settings: Settings) -> tuple[list[str], list[str]]:
    """(sub-tasks that have the wanted words, notes); those that lack them are left out unless they were asked for."""
    names = chosen(card, settings.task)
    known = {template for part in card.parts.values() for template in part.templates}
    if settings.template not in known:
        raise UnknownName(f"template of task {card.name}", settings.template, sorted(known))
    lacking = [name for name in names if settings.template not in card.parts[name].templates]
    if lacking and settings.task != "all":
        having = [name for name, part in card.parts.items() if settings.template in part.templates]
        raise UserError(
            f"template={settings.template} has no words for {', '.join(lacking)}.", f"It has for {', '.join(having)}."
        )
    note = f"template {settings.template} has no words for {', '.join(lacking)}, so left out"
    return [name for name in names if name not in lacking], [note] if lacking else []


def _limited(drawn: Sequence[Drawn], limit: int | None) -> list[Drawn]:
    """At most `limit` queries, shared out evenly over the sub-tasks, evenly spaced over the rows of each."""
    drawn_and_limits = zip(drawn, shares(limit, len(drawn)), strict=True)
    return [replace(one, asked=tuple(spread(one.asked, share))) for one, share in drawn_and_limits]
