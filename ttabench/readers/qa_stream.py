"""Question-answering streams: read documents in an order, then answer questions about them.

Protocols (`kind`):
    stream     Observe every document, then Ask every question about them (CaMeLS arXiv 2305.15076, MAC 2403.04317).
    grouped    Documents in groups of equal number, as many as the total of tokens needs at `group_tokens` each; one
               episode a group (Generative Adapter, arXiv 2411.05877).
    retention  Observe `probe` documents and Ask about them, then ask the same again after every `every` further
               documents (Figure 3 of MAC); the column `step` of the results tells the passes apart.

    Episode("streamingqa/test/seed0", [Observe(doc 1), ..., Observe(doc K), Ask(question 1), ..., Ask(question N)])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise

from ttabench.core.errors import UserError
from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.core.types import Ask, At, Episode, Json, Observe, Step
from ttabench.readers.base import Bound, Training, spread
from ttabench.readers.breaks import blanks_in_front
from ttabench.readers.cards import Card
from ttabench.readers.control_contexts import with_pieces
from ttabench.readers.control_documents import next_documents, titles_of, unread
from ttabench.readers.description import described
from ttabench.readers.protocol_options import resolve
from ttabench.readers.qa_documents import Document, Settings, arrange, documents_of, of_articles
from ttabench.readers.qa_rows import QARow, parse
from ttabench.readers.sources import Request, table, twin_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import empty_golds, text_metric

_ALL_OF_A_TWIN = 1665
"""Documents of a mini source asked for "all": it has no end, so as many as the papers read."""


@dataclass(frozen=True, kw_only=True)
class QAStream(Bound[Settings]):
    """A `readers.Task` over question-answering rows."""

    rows: Sequence[QARow]

    @cached_property
    def documents(self) -> list[Document]:
        """The documents read, in reading order."""
        return arrange(self.rows, self.settings, self.seed)

    @cached_property
    def asked(self) -> Sequence[QARow]:
        """The questions asked, in order, after `limit`; retention asks only about the probe documents."""
        probed = self.settings.probe if self.settings.kind == "retention" else None
        rows = [row for document in self.documents[:probed] for row in document.rows]
        return spread(rows, self.limit)

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        sentences = []
        empty = empty_golds(self._ask(row, "", 0) for row in self.asked)
        if empty:
            sentences.append(
                f"{empty} target answers are empty after normalisation: em_prefix counts them right always"
            )
        wanted, read_ = self.settings.documents, len(self.documents)
        if wanted is not None and read_ < wanted and self.settings.downsample == "contexts":
            typed = "documents" in self.request.options
            asked = f"{wanted} documents were asked for, the source has {read_}"
            sentences.append(asked if typed else f"all documents of the source are read: {read_}")
        return sentences

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """The episodes of the protocol; the groups of `kind=grouped` depend on `tokens` (see `readers.Task`)."""
        return (episode for episode, _ in self._with_documents(tokens))

    def _with_documents(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Sequence[Document]]]:
        """Every episode with the documents it reads."""
        name = f"{self.card.name}/{self.split}/seed{self.seed}"
        if self.settings.kind == "retention":
            yield Episode(key=name, steps=tuple(blanks_in_front(self._retention()))), self.documents
            return
        wanted = {row.id for row in self.asked}
        groups = [self.documents] if self.settings.kind == "stream" else self._groups(tokens)
        for number, group in enumerate(groups):
            pairs = [(document.key, row) for document in group for row in document.rows if row.id in wanted]
            asks = [self._ask(row, source_key, len(group)) for source_key, row in pairs]
            if asks:
                key = name if self.settings.kind == "stream" else f"{name}/group{number}of{len(groups)}"
                yield Episode(key=key, steps=self._told(group, asks)), group

    @cached_property
    def unread(self) -> list[Document]:
        """Documents that are not read, in the same order."""
        return unread(self, self.rows, self.documents)

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with as many of the documents that come next in the same order (see `readers.Task`)."""
        for episode, group in self._with_documents(tokens):
            yield with_pieces(episode, [self._observe(document) for document in self._next(group)])

    def _next(self, group: Sequence[Document]) -> list[Document]:
        place = self.documents.index(group[0])
        behind = [*self.documents[place + len(group) :], *self.documents[:place], *self.unread]
        return next_documents(group, behind, self.source)

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        pairs = [(self._next(group), group) for _, group in self._with_documents(None)]
        counts = {(len(other), len(group)) for other, group in pairs}
        sentences = [f"the other context has {left} documents, not {own}" for left, own in sorted(counts) if left < own]
        if any(titles_of(other) & titles_of(group) for other, group in pairs):
            sentences.append("the other context has documents of the own articles: there are no others")
        return described(self.others(), sentences)

    def _groups(self, tokens: Tokens | None) -> list[list[Document]]:
        texts = (document.text for document in self.documents)
        length = sum(len(tokens.encode(text)) if tokens else len(text) / CHARACTERS_A_TOKEN for text in texts)
        total = len(self.documents)
        groups = min(total, max(1, math.ceil(length / self.settings.group_tokens)))
        bounds = [number * total // groups for number in range(groups + 1)]
        return [self.documents[first:last] for first, last in pairwise(bounds)]

    def _retention(self) -> Iterator[Step]:
        probe, every = self.settings.probe, self.settings.every
        source = {row.id: document.key for document in self.documents[:probe] for row in document.rows}
        first = min(probe, len(self.documents))
        for number, document in enumerate(self.documents, start=1):
            yield self._observe(document)
            if number >= first and (number - first) % every == 0:
                for row in self.asked:
                    yield self._ask(row, source[row.id], number, key=f"{row.id}@{number}")

    def _told(self, documents: Sequence[Document], asks: Sequence[Ask]) -> tuple[Step, ...]:
        """Documents and the questions about them; with `window` the documents stand in front of every question."""
        steps = tuple(blanks_in_front([*map(self._observe, documents), *asks]))
        if not self.settings.window:
            return steps
        window = tuple(step for step in steps if isinstance(step, Observe))
        return tuple(replace(step, window=window) for step in steps if isinstance(step, Ask))

    def _observe(self, document: Document) -> Observe:
        return Observe(text=document.text, key=document.key, joiner=self.card.prompt.joiner)

    def _ask(self, row: QARow, source_key: str, read_: int, key: str = "") -> Ask:
        golds = dict.fromkeys((row.target, *row.answers, *row.answers_additional))
        prompt = self.card.prompt
        return Ask(
            prompt=prompt.asked(row.question, self.settings.prompt, self.settings.examples),
            question=row.question,
            key=key or row.id,
            want=prompt.generated(tuple(golds), self.settings.max_new_tokens),
            joiner=prompt.joiner,
            source_key=source_key,
            at=At(read_),
        )

    @property
    def drawn_by(self) -> str:
        """Not on the name: tasks of one source draw alike."""
        return self.split

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Streams of `documents` distinct texts, `questions` about each, drawn with replacement.

        A mini source draws new texts for every episode; files are read in epochs, each in a new order, and the rest of
        an epoch that fills no episode is left out. A source of fewer texts gives episodes of all it has.
        """
        pool = [] if self.mini else documents_of(self.rows, True)
        size = min(training.documents, len(pool)) if pool else training.documents
        queue: list[Document] = []
        for number in count():
            if self.mini:
                queue = self._fresh(training.draws.getrandbits(48), size)
            elif len(queue) < size:
                queue = training.draws.sample(pool, len(pool))
            drawn, queue = queue[:size], queue[size:]
            asks = [
                self._ask(row, document.key, len(drawn), key=f"{row.id}@{number}.{i}")
                for document in drawn
                for i, row in enumerate(training.draws.choices(document.rows, k=training.questions))
            ]
            yield self.split, self._told(drawn, asks)

    def _fresh(self, seed: int, documents: int) -> list[Document]:
        data = twin_table(self.card, self.split, seed, documents, self.arguments)
        rows, _ = parse(self.card, data, self.settings.capitalise)
        return documents_of(rows, True)

    def counts(self) -> dict[str, Json]:
        """Counts of the source, of the pieces read, and of the queries asked."""
        return {"rows": len(self.rows), "documents": len(self.documents), "questions": len(self.asked)}

    def texts(self) -> Iterator[str]:
        """Every text, question and answer used."""
        yield from (document.text for document in self.documents)
        for row in self.asked:
            yield from (row.id, row.question, *row.answers, *row.answers_additional)


def read(card: Card, request: Request) -> QAStream:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    for name in card.metrics:
        text_metric(name)
    card.prompt.check(card.name, settings.prompt, settings.examples)
    if settings.window and settings.kind == "retention":
        raise UserError("kind=retention asks while it reads on: window=true has no place there.", "Leave window out.")
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, settings.documents or _ALL_OF_A_TWIN, arguments)
    else:
        data = table(card, request)
        if settings.kind == "grouped" and "documents" not in request.options:
            settings = settings.model_copy(update={"documents": None})  # the paper groups the whole split
    rows, dropped = parse(card, data, settings.capitalise)
    rows = of_articles(rows, settings.articles)
    return QAStream(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=data.label,
        rows=rows,
        unused=dropped,
        data_notes=data.notes,
    )
