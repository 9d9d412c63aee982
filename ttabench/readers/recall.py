"""Texts that are read, and facts of them that are asked by how long ago they were told.

    Episode("recall/test/0", [Observe(tokens 0..505), Observe(506..1020), ..., Ask("Where does Ada Voss live?", at 512),
                              Ask("What pet does Tavo Brenik keep?", at 1024), ...])

A query at distance 1,024 asks what was told last between 513 and 1,024 tokens ago. Its answer is chosen among the
values that its relation takes. Pieces end with a line; a question stands behind an empty one.

Rows are of any table, of the hub or of the miniature world. `told` is the number of characters up to the end of what
tells the fact; a fact that is told several times stands there as often:

    {"title": "A book", "text": "So Ada Voss lives in Selby. It rained.\\n",
     "facts": [{"key": "Ada Voss/home", "told": 27, "question": "Where does Ada Voss live?",
                "begins": "So the home of Ada Voss is in", "options": ["Selby", "Yarm"], "answer": "Selby"}]}
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ttabench.core.types import Ask, At, Episode, Json, Observe, Step
from ttabench.readers.base import Bound, Training, behind, drawn, fingerprint, shares, spread
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow
from ttabench.readers.sources import Request, Table, ample, resolve, rows_of, usable
from ttabench.readers.tokens import CutText, TokenCount, TokenCounts, Tokens


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    tokens: TokenCount = 7680
    """Of each text, at most; k stands for 1,024."""
    piece: TokenCount = 512
    """Tokens of a piece, at most, where lines are no longer."""
    distances: TokenCounts = (512, 1024, 2048, 4096, 8192)
    """In tokens: each query counts at the smallest that reaches back to where its answer was told last."""
    questions: Annotated[int, Field(gt=0)] = 16
    """At each distance, at most."""
    books: Annotated[int, Field(gt=0)] | None = None
    """How many texts, drawn by the seed; None for all of them."""
    sequence_tokens: TokenCount = 4096
    """Tokens of a training sequence."""


class Fact(BaseModel):
    """One telling of a fact."""

    model_config = ConfigDict(frozen=True, strict=True)

    key: str
    """The same wherever the same fact is told."""
    told: int = Field(gt=0)
    """Characters of the text up to the end of what tells it."""
    question: str
    begins: str = ""
    """The beginning of a sentence that the answer ends, which is not asked."""
    options: tuple[str, ...] = Field(min_length=2)
    answer: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """A text and the facts it tells, in the order of the text."""

    id: str
    text: str
    facts: tuple[Fact, ...]


def stories_of(card: Card, data: Table) -> list[Story]:
    """The texts of these rows; those of one title are told apart by their number."""
    listed = TypeAdapter(list[Fact])

    def story_of(row: RawRow) -> Story:
        text, title = row.text(*card.columns["text"]), row.cell(card.columns["title"]) or ""
        given = json.dumps(row.cell(card.columns["facts"]), default=str)  # strict mode takes lists for tuples
        facts = listed.validate_json(given, strict=True)
        for fact in facts:
            if fact.told > len(text):
                raise ValueError(f"{fact.key!r} is told at {fact.told} of {len(text)} characters")
            if fact.answer not in fact.options:
                raise ValueError(f"{fact.key!r}: its answer is none of its options")
        ordered = tuple(sorted(facts, key=lambda fact: fact.told))
        return Story(id=f"{row.number} {title}".strip(), text=text, facts=ordered)

    return usable(data, story_of)


@dataclass(frozen=True, kw_only=True)
class Recall(Bound[Settings]):
    """A `readers.Task` over texts with facts, one episode a text."""

    stories: Sequence[Story]

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Story]]:
        """One episode a text."""
        for story, share in zip(self.stories, shares(self.limit, len(self.stories)), strict=True):
            pieces, asks = self._told(story, self.settings.tokens, tokens)
            if kept := spread(asks, share):
                yield Episode(key=self.key(story.id), steps=(*pieces, *kept)), story

    def _told(self, story: Story, most: int, tokens: Tokens | None) -> tuple[list[Observe], list[Ask]]:
        """The pieces of the lines that so many tokens hold, of a longer first line its beginning, and the queries."""
        cut = CutText.of(story.text, tokens)
        if len(cut) > most:
            line = cut.text.rfind("\n", 0, cut.starts[most]) + 1
            cut = cut.range(0, bisect_left(cut.starts, line) or most)
        return list(cut.pieces(self.settings.piece, story.id)), list(self._asks(story, cut))

    def _asks(self, story: Story, cut: CutText) -> Iterator[Ask]:
        ends = cut.ends(self.settings.piece)
        told = (fact for fact in story.facts if fact.told <= len(cut.text))
        last = {fact.key: (bisect_left(cut.starts, fact.told), fact) for fact in told}
        draws = random.Random(f"recall {self.seed} {story.id} {len(ends)}")
        for nearer, distance in pairwise([-1, *sorted(set(self.settings.distances))]):
            facts = [(token, fact) for token, fact in last.values() if nearer < len(cut) - token <= distance]
            for token, fact in draws.sample(facts, min(self.settings.questions, len(facts))):
                piece = bisect_left(ends, token)
                yield Ask(
                    prompt=fact.question,
                    key=f"{story.id}@{len(cut)}/{fact.key}",
                    want=self.card.prompt.chosen(fact.options, fact.answer),
                    question=fact.question,
                    joiner=self.card.prompt.joiner,
                    source_key=f"{story.id}@{ends[piece - 1] if piece else 0}",
                    at=At(distance, "distance"),
                )

    def instead(self, own: Story, tokens: Tokens | None) -> list[Observe]:
        """The pieces of the next text, for the last those of the first."""
        return self._told(self._next(own), self.settings.tokens, tokens)[0]

    def _next(self, story: Story) -> Story:
        """The next text; of a mini source of one text its second."""
        others = behind(self.stories, story)
        if self.mini and not others:
            others = stories_of(self.card, self.twin(self.seed, **ample(2, self.settings.tokens)))
        return self.apart({story.text}, others, lambda one: {one.text})

    def describe_others(self) -> dict[str, Json]:
        """See `Bound`."""
        return {"notes": [], "digest": fingerprint(*(self._next(story).text for story in self.stories))}

    def training_steps(self, training: Training) -> Iterator[tuple[str, list[Step]]]:
        """Texts of `sequence_tokens` tokens with their queries; a mini source writes a new one for every sequence."""
        length, made = self.settings.sequence_tokens, partial(stories_of, self.card)
        for story in self.epochs(training.draws, self.stories, made, **ample(1, length)):
            pieces, asks = self._told(story, length, training.tokens)
            yield self.split, [*pieces, *asks]

    def counts(self) -> dict[str, Json]:
        """Texts, their characters and facts; `distances`: steps of the figures."""
        books, distances = len(self.stories), sorted(set(self.settings.distances))
        characters = sum(len(story.text) for story in self.stories)
        facts = sum(len({fact.key for fact in story.facts}) for story in self.stories)
        return {"books": books, "characters": characters, "facts": facts, "distances": distances}

    def texts(self) -> Iterator[str]:
        """Every text with its facts."""
        for story in self.stories:
            yield from (story.id, story.text, *(fact.model_dump_json() for fact in story.facts))


def read(card: Card, request: Request) -> Recall:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    data = rows_of(card, request, ample(settings.books or 8, settings.tokens))
    stories = drawn(stories_of(card, data), settings.books, f"books {request.seed}")
    return Recall(card=card, request=request, settings=settings, arguments=arguments, data=data, stories=stories)
