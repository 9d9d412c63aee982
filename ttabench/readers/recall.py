"""Texts to read, and queries about their facts, by the distance in tokens to the last mention.

    Episode("recall/test/0", [Chunk(tokens 0..505), Chunk(506..1020), ...,
                              Query("Where does Ada Voss live?", at 512),
                              Query("What pet does Tavo Brenik keep?", at 1024), ...])

A query at distance 1,024 is about a fact with its last mention between 513 and 1,024 tokens ago.
Its answer is a choice among the values of its relation. Chunks end with a line; an empty line
precedes a query.

Rows come from any table, the hub or the synthetic world. `told` is the number of characters up to
the end of a mention; a fact with several mentions is listed once per mention:

    {"title": "A book", "text": "So Ada Voss lives in Selby. It rained.\\n",
     "facts": [{"key": "Ada Voss/home", "told": 27, "question": "Where does Ada Voss live?",
                "begins": "So the home of Ada Voss is in",
                "options": ["Selby", "Yarm"], "answer": "Selby"}]}
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter

from ttabench.core.types import Chunk, Episode, Json, Query, Step, StreamPosition
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    fingerprint,
    pick_evenly,
    rows_after,
    sample_rows,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow
from ttabench.readers.sources import (
    RawTable,
    Request,
    book_arguments,
    load_rows,
    parse_table,
    resolve_settings,
)
from ttabench.readers.tokens import TokenCount, TokenCounts, TokenizedText, Tokens


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    tokens: TokenCount = 7680
    """Maximum tokens of each text; k means 1,024."""
    piece: TokenCount = 512
    """Maximum tokens of a chunk, if lines are no longer."""
    distances: TokenCounts = (512, 1024, 2048, 4096, 8192)
    """Distances in tokens: each query counts at the smallest that reaches back to its answer's last
    mention.
    """
    questions: PositiveInt = 16
    """Maximum number of questions at each distance."""
    books: PositiveInt | None = None
    """Number of texts, drawn with the seed; None for all."""
    sequence_tokens: TokenCount = 4096
    """Tokens of a training sequence."""


class Fact(BaseModel):
    """One mention of a fact."""

    model_config = ConfigDict(frozen=True, strict=True)

    key: str
    """The same for every mention of the fact."""
    told: PositiveInt
    """Characters of the text up to the end of the mention."""
    question: str
    begins: str = ""
    """Beginning of a sentence that the answer completes; not used as a query."""
    options: tuple[str, ...] = Field(min_length=2)
    answer: str


@dataclass(frozen=True, kw_only=True)
class RecallText:
    """A text and its facts, in the order of the text."""

    id: str
    text: str
    facts: tuple[Fact, ...]


def parse_recall_texts(card: Card, data: RawTable) -> list[RecallText]:
    """Parse the texts of these rows; ids are numbered, so titles may repeat."""
    listed = TypeAdapter(list[Fact])

    def recall_text_of(row: RawRow) -> RecallText:
        text, title = row.text(*card.columns["text"]), row.cell(card.columns["title"]) or ""
        # JSON: strict mode then takes lists for tuples
        given = json.dumps(row.cell(card.columns["facts"]), default=str)
        facts = listed.validate_json(given, strict=True)
        for fact in facts:
            if fact.told > len(text):
                raise ValueError(f"{fact.key!r}: told={fact.told} exceeds {len(text)} characters")
            if fact.answer not in fact.options:
                raise ValueError(f"{fact.key!r}: its answer is not among its options")
        ordered = tuple(sorted(facts, key=lambda fact: fact.told))
        return RecallText(id=f"{row.number} {title}".strip(), text=text, facts=ordered)

    return parse_table(data, recall_text_of)


@dataclass(frozen=True)
class Recall(Task[Settings]):
    """A `Task` over texts with facts, one episode per text."""

    recall_texts: Sequence[RecallText]

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, RecallText]]:
        """Yield one episode per text."""
        for recall_text, share in divide_limit(self.limit, self.recall_texts):
            chunks, queries = self._chunks_and_queries(recall_text, self.settings.tokens, tokens)
            if kept := pick_evenly(queries, share):
                yield (
                    Episode(key=self.episode_key(recall_text.id), steps=(*chunks, *kept)),
                    recall_text,
                )

    def _chunks_and_queries(
        self, recall_text: RecallText, max_tokens: int, tokens: Tokens | None
    ) -> tuple[list[Chunk], list[Query]]:
        """Return the chunks of the lines that fit into `max_tokens`, at least part of the first
        line, and the queries.
        """
        cut = TokenizedText.tokenize(recall_text.text, tokens)
        if len(cut) > max_tokens:
            line = cut.text.rfind("\n", 0, cut.starts[max_tokens]) + 1
            cut = cut.slice_tokens(0, bisect_left(cut.starts, line) or max_tokens)
        return list(cut.chunks(self.settings.piece, recall_text.id)), list(
            self._queries(recall_text, cut)
        )

    def _queries(self, recall_text: RecallText, cut: TokenizedText) -> Iterator[Query]:
        ends = cut.chunk_ends(self.settings.piece)
        read_facts = (fact for fact in recall_text.facts if fact.told <= len(cut.text))
        last_mentions = {
            fact.key: (bisect_left(cut.starts, fact.told), fact) for fact in read_facts
        }
        rng = random.Random(f"recall {self.seed} {recall_text.id} {len(ends)}")
        for nearer, distance in pairwise([-1, *sorted(set(self.settings.distances))]):
            facts = [
                (token, fact)
                for token, fact in last_mentions.values()
                if nearer < len(cut) - token <= distance
            ]
            for token, fact in rng.sample(facts, min(self.settings.questions, len(facts))):
                chunk = bisect_left(ends, token)
                yield Query(
                    prompt=fact.question,
                    key=f"{recall_text.id}@{len(cut)}/{fact.key}",
                    want=self.card.prompt.make_choose(fact.options, fact.answer),
                    question=fact.question,
                    joiner=self.card.prompt.joiner,
                    source_key=f"{recall_text.id}@{ends[chunk - 1] if chunk else 0}",
                    at=StreamPosition(distance, "distance"),
                )

    def swap_context(self, own: RecallText, tokens: Tokens | None) -> list[Chunk]:
        """Return the chunks of the next text; the last text gets those of the first."""
        return self._chunks_and_queries(self._swap_source(own), self.settings.tokens, tokens)[0]

    def _swap_source(self, recall_text: RecallText) -> RecallText:
        """Return the next text; for a mini source of one text, its second."""
        others = rows_after(self.recall_texts, recall_text)
        if self.is_synthetic and not others:
            others = parse_recall_texts(
                self.card, self.draw_synthetic(self.seed, **book_arguments(2, self.settings.tokens))
            )
        return self.first_disjoint({recall_text.text}, others, lambda other: {other.text})

    def describe_swapped(self) -> dict[str, Json]:
        """Describe the swapped contexts, see `Task`."""
        return {
            "notes": [],
            "digest": fingerprint(
                *(self._swap_source(recall_text).text for recall_text in self.recall_texts)
            ),
        }

    def training_steps(self, training: Training) -> Iterator[tuple[str, list[Step]]]:
        """Yield texts of `sequence_tokens` tokens with their queries; a mini source generates a new
        one each time.
        """
        length = self.settings.sequence_tokens
        parse = partial(parse_recall_texts, self.card)
        for recall_text in self.iter_training_rows(
            training.rng, self.recall_texts, parse, **book_arguments(1, length)
        ):
            chunks, queries = self._chunks_and_queries(recall_text, length, training.tokens)
            yield self.split, [*chunks, *queries]

    def counts(self) -> dict[str, Json]:
        """Count texts, their characters and facts; `distances`: steps of the metrics."""
        books, distances = len(self.recall_texts), sorted(set(self.settings.distances))
        characters = sum(len(recall_text.text) for recall_text in self.recall_texts)
        facts = sum(
            len({fact.key for fact in recall_text.facts}) for recall_text in self.recall_texts
        )
        return {"books": books, "characters": characters, "facts": facts, "distances": distances}

    def texts(self) -> Iterator[str]:
        """Yield every text with its facts."""
        for recall_text in self.recall_texts:
            yield from (
                recall_text.id,
                recall_text.text,
                *(fact.model_dump_json() for fact in recall_text.facts),
            )


def read(card: Card, request: Request) -> Recall:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    data = load_rows(card, request, book_arguments(settings.books or 8, settings.tokens))
    recall_texts = sample_rows(
        parse_recall_texts(card, data), settings.books, f"books {request.seed}"
    )
    return Recall(card, request, settings, arguments, data, recall_texts)
