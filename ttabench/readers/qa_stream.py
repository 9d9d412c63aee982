"""Question-answering streams: read documents in an order, then answer questions about them.

Protocols (`kind`):
    stream     Read every document, then answer every question about them (CaMeLS arXiv 2305.15076,
               MAC 2403.04317).
    grouped    Split the documents into groups, with one episode per group (Generative Adapter,
               arXiv 2411.05877). Groups have equally many documents: `group_documents`, or as many
               as give `group_tokens` tokens per group on average.
    retention  Read `probe` documents and answer the questions about them. Repeat these questions
               after every `every` further documents (Figure 3 of MAC). The column `step` of the
               results numbers these passes.

    Episode("streamingqa/test/seed0", [Chunk(doc 1), ..., Chunk(doc K), Query(1), ..., Query(N)])

With the same seed, a run with fewer documents reads the first documents of a run with more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from ttabench.core.amounts import CHARS_PER_TOKEN
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Episode, Json, Query, Step, StreamPosition
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Task,
    Training,
    fingerprint,
    move_blanks_forward,
    pick_evenly,
    swap_seeds,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.qa_rows import QARow, parse_qa_rows
from ttabench.readers.sources import Request, load_rows, resolve_settings
from ttabench.readers.tokens import TokenCount, Tokens
from ttabench.stats.clusters import SamplingUnit

SYNTHETIC_DOCUMENTS = 1665
"""Documents for documents=all from a mini source, which is endless; as many as the papers read."""


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    kind: Literal["stream", "grouped", "retention"] = "stream"
    documents: Annotated[
        int | None, Field(gt=0), BeforeValidator(lambda value: None if value == "all" else value)
    ] = 1665
    """Number of documents to read; "all" for every one."""
    articles: Annotated[str, Field(pattern=r"^(\d+:\d+)?$")] = ""
    """Range of titles to use, in source order and counted from 0. 0:12: the first twelve. Empty:
    all.
    """
    order: Literal["random", "titles", "file"] = "random"
    """Reading order. titles: titles in random order, paragraphs of a title in original order."""
    capitalise: bool = False
    """True to capitalise the first letter of answers."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: NonNegativeInt = 0
    """Worked examples of the card before every question, in its template."""
    max_new_tokens: TokenCount = 16
    window: bool = False
    """True to put the documents into the window of every query. No method then adapts to them."""
    group_tokens: TokenCount = 1024
    """Grouped: tokens per group, on average."""
    group_documents: PositiveInt | None = None
    """Grouped: documents per group, instead of `group_tokens`. The last group may have fewer."""
    probe: PositiveInt = 200
    """Retention: number of first documents, whose questions are repeated."""
    every: PositiveInt = 200
    """Retention: documents between two passes over the questions."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text to read, and the questions about it."""

    key: str
    text: str
    rows: tuple[QARow, ...]


@dataclass(frozen=True)
class QAStream(Task[Settings]):
    """Task over question-answering rows, with the protocols of this module."""

    shares_training_draws: ClassVar[bool] = True
    rows: Sequence[QARow]

    @property
    def unit(self) -> SamplingUnit:
        """Sampling unit of the statistics.

        With `group_tokens`, groups are no sampling units, because there may be only one or two.
        """
        return "group" if self.settings.group_documents else self.card.unit

    @cached_property
    def documents(self) -> list[Document]:
        """Documents to read, in reading order."""
        return self._order_documents(self.rows)[: self.settings.documents]

    def _order_documents(self, rows: Sequence[QARow]) -> list[Document]:
        documents = group_by_text(rows)
        rng = random.Random(self.seed)
        order = self.settings.order
        if order == "random":
            return rng.sample(documents, len(documents))
        if order == "titles":
            _require_titles("order=titles", [document.rows[0] for document in documents])
            titles = list(dict.fromkeys(document.rows[0].title for document in documents))
            title_rank = {title: rank for rank, title in enumerate(rng.sample(titles, len(titles)))}
            documents.sort(
                key=lambda document: (
                    title_rank[document.rows[0].title],
                    document.rows[0].position or 0,
                )
            )
        return documents

    @cached_property
    def query_rows(self) -> Sequence[QARow]:
        """Questions in order, at most `limit`. With kind=retention, only about probe documents."""
        n_probed = self.settings.probe if self.settings.kind == "retention" else None
        rows = [row for document in self.documents[:n_probed] for row in document.rows]
        return pick_evenly(rows, self.limit)

    def episodes_with_source(
        self, tokens: Tokens | None
    ) -> Iterator[tuple[Episode, Sequence[Document]]]:
        """Yield every episode with its documents; groups of `kind=grouped` depend on `tokens`."""
        name = f"{self.card.name}/{self.split}/seed{self.seed}"
        if self.settings.kind == "retention":
            steps = tuple(move_blanks_forward(self._retention_steps()))
            yield Episode(key=name, steps=steps), self.documents
            return
        selection = {row.id for row in self.query_rows}
        is_stream = self.settings.kind == "stream"
        groups = [self.documents] if is_stream else self._groups(tokens)
        for number, group in enumerate(groups):
            queries = [
                self._query(row, len(group))
                for document in group
                for row in document.rows
                if row.id in selection
            ]
            if queries:
                key = name if is_stream else f"{name}/group{number}of{len(groups)}"
                yield Episode(key=key, steps=self._episode_steps(group, queries)), group

    @cached_property
    def unread(self) -> list[Document]:
        """Documents that are not read, in the same order.

        For a mini source, they are drawn anew with another seed, and are about other entities.
        """
        if not self.is_synthetic:
            return self._order_documents(self.rows)[len(self.documents) :]
        names = names_in(*(document.text for document in self.documents))
        other_documents = self._order_documents(
            self._generate_rows(next(swap_seeds(self.seed)), 2 * len(self.documents))
        )
        return [
            document for document in other_documents if names.isdisjoint(names_in(document.text))
        ]

    def swap_context(self, own: Sequence[Document], tokens: Tokens | None) -> Iterator[Chunk]:  # noqa: ARG002
        """Return as many other documents, next in order, to replace the context `own`.

        They come from other articles if there are any.
        """
        begin, texts = self.documents.index(own[0]), {document.text for document in own}
        following = (*self.documents[begin + len(own) :], *self.documents[:begin], *self.unread)
        new_documents = [document for document in following if document.text not in texts]
        other_articles = [
            document
            for document in new_documents
            if titles_of(own).isdisjoint(titles_of([document]))
        ]
        return map(self._chunk, (other_articles or new_documents)[: len(own)])

    def _groups(self, tokens: Tokens | None) -> list[list[Document]]:
        total = len(self.documents)
        if size := self.settings.group_documents:
            bounds = [*range(0, total, size), total]
        else:
            texts = (document.text for document in self.documents)
            n_tokens = sum(
                len(tokens.encode(text)) if tokens else len(text) / CHARS_PER_TOKEN
                for text in texts
            )
            groups = min(total, max(1, math.ceil(n_tokens / self.settings.group_tokens)))
            bounds = [number * total // groups for number in range(groups + 1)]
        return [self.documents[first:last] for first, last in pairwise(bounds)]

    def _retention_steps(self) -> Iterator[Step]:
        probe, every = self.settings.probe, self.settings.every
        first_pass = min(probe, len(self.documents))
        for number, document in enumerate(self.documents, start=1):
            yield self._chunk(document)
            if number >= first_pass and (number - first_pass) % every == 0:
                for row in self.query_rows:
                    yield self._query(row, number, f"{row.id}@{number}")

    def _episode_steps(
        self, documents: Sequence[Document], queries: Sequence[Query]
    ) -> tuple[Step, ...]:
        """Return the documents and then the queries.

        With `settings.window`, only the queries are steps, and the documents are in their windows.
        """
        episode = Episode(
            key="", steps=tuple(move_blanks_forward([*map(self._chunk, documents), *queries]))
        )
        if not self.settings.window:
            return episode.steps
        window = tuple(episode.chunks())
        return tuple(replace(query, window=window) for query in episode.queries())

    def _chunk(self, document: Document) -> Chunk:
        return Chunk(text=document.text, key=document.key, joiner=self.card.prompt.joiner)

    def _query(self, row: QARow, n_read: int, key: str = "") -> Query:
        # the papers train on the shortest answer and score against it; the first one wins a tie
        target = min(row.answers, key=len)
        gold_answers = dict.fromkeys((target, *row.answers, *row.answers_additional))
        prompt = self.card.prompt
        return Query(
            prompt=prompt.fill_template(row.question, self.settings.prompt, self.settings.examples),
            question=row.question,
            key=key or row.id,
            want=prompt.make_generate(tuple(gold_answers), self.settings.max_new_tokens),
            joiner=prompt.joiner,
            source_key=fingerprint(row.text),
            at=StreamPosition(n_read),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Yield training episodes of `documents` distinct texts, with `questions` about each.

        Questions are drawn with replacement. A mini source draws new texts for every episode. Files
        are read in epochs, each in a new order. Texts at the end of an epoch that do not fill an
        episode are skipped. If a source has too few texts, every episode has all of them.
        """
        pool, queue, size = group_by_text(self.rows), list[Document](), training.documents
        for number in count():
            if self.is_synthetic:
                queue = group_by_text(self._generate_rows(training.rng.getrandbits(48), size))
            elif len(queue) < min(size, len(pool)):
                queue = training.rng.sample(pool, len(pool))
            drawn, queue = queue[:size], queue[size:]
            queries = [
                self._query(row, len(drawn), f"{row.id}@{number}.{i}")
                for document in drawn
                for i, row in enumerate(training.rng.choices(document.rows, k=training.questions))
            ]
            yield self.split, self._episode_steps(drawn, queries)

    def _generate_rows(self, seed: int, documents: int) -> list[QARow]:
        return parse_qa_rows(
            self.card, self.draw_synthetic(seed, documents=documents), self.settings.capitalise
        )

    def counts(self) -> dict[str, Json]:
        """Count the rows of the source, the documents read, and the questions."""
        return {
            "rows": len(self.rows),
            "documents": len(self.documents),
            "questions": len(self.query_rows),
        }

    def texts(self) -> Iterator[str]:
        """Yield every text, question and answer used."""
        yield from (document.text for document in self.documents)
        for row in self.query_rows:
            yield from (row.id, row.question, *row.answers, *row.answers_additional)


def titles_of(documents: Iterable[Document]) -> set[str]:
    """Return the article titles of documents. Rows without a title are skipped."""
    return {row.title for document in documents for row in document.rows if row.title}


def select_articles(rows: list[QARow], selection: str) -> list[QARow]:
    """Select the rows of the requested titles, see `Settings.articles`."""
    if not selection:
        return rows
    _require_titles(f"articles={selection}", rows)
    titles = list(dict.fromkeys(row.title for row in rows))
    kept = set(titles[slice(*map(int, selection.split(":")))])
    if not kept:
        raise UserError(
            f"articles={selection} selects none of {len(titles)} titles.",
            "Use FIRST:LAST, counted from 0.",
        )
    return [row for row in rows if row.title in kept]


def group_by_text(rows: Sequence[QARow]) -> list[Document]:
    """Group rows into one document per text, in order of first appearance.

    Questions stay in file order. The key of a document is a hash of its text.
    """
    by_text: dict[str, list[QARow]] = {}
    for row in rows:
        by_text.setdefault(row.text, []).append(row)
    return [
        Document(key=fingerprint(text), text=text, rows=tuple(rows_of_text))
        for text, rows_of_text in by_text.items()
    ]


def _require_titles(option: str, rows: Sequence[QARow]) -> None:
    if untitled := next((row for row in rows if not row.title), None):
        raise UserError(f"{option} needs titles: question {untitled.id} has none.", "Remove it.")


def read(card: Card, request: Request) -> QAStream:
    """Load the data of a card as a task; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    if settings.group_documents and settings.kind != "grouped":
        raise UserError(
            f"kind={settings.kind} has no group_documents.", "Add --task-set kind=grouped."
        )
    if settings.window and settings.kind == "retention":
        raise UserError("kind=retention cannot be combined with window=true.", "Remove window.")
    data = load_rows(
        card, request, {**arguments, "documents": settings.documents or SYNTHETIC_DOCUMENTS}
    )
    if (
        request.source != "mini"
        and settings.kind == "grouped"
        and "documents" not in request.options
    ):
        # the paper groups the whole split
        settings = settings.model_copy(update={"documents": None})
    rows = select_articles(parse_qa_rows(card, data, settings.capitalise), settings.articles)
    return QAStream(card, request, settings, arguments, data, rows)
