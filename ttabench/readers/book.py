"""Books that do not fit into a window: every stride is scored, then read.

The first `window` tokens are read unscored, then `stride` tokens at a time are scored and read (the sliding window of
StreamAdapter, arXiv 2411.09289, Table 2).

    Episode("pg19/test/718", [Observe(0..1022), Ask(1023 -> 1024..1535), Observe(1023..1534), Ask(1535 -> ...), ...])

One pass over the longest of the `tokens` gives the figures of all these lengths: a query counts at every length that
holds it, and a book that ends before counts at its own length. A book no longer than a window is scored whole.

A stride is predicted from the token before it, which therefore is the prompt of its query and is read after it: what
a method keeps need not be able to predict anything by itself. The text is tokenised once; pieces carry its ids.

Books of a folder, a table or the hub are read when they are needed: the training split of PG-19 is 11 GB.

    pg19/test/718.txt            the text, UTF-8
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from ttabench.core.amounts import CHARS_PER_TOKEN
from ttabench.core.errors import MAX_TEXT_CHARS, UserError
from ttabench.core.files import reading_file
from ttabench.core.types import Chunk, Episode, Json, Query, Score, Step, StreamPosition
from ttabench.readers.base import (
    Task,
    Training,
    fingerprint,
    make_unique,
    rows_after,
    sample_rows,
    split_limit,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, report_row_errors
from ttabench.readers.sources import (
    RawTable,
    Request,
    archive_roots,
    book_arguments,
    load_hub_rows,
    load_table,
    resolve_settings,
    synthetic_table,
)
from ttabench.readers.tokens import TokenCount, TokenCounts, TokenizedText, Tokens

CHARS_PER_SEQUENCE_TOKEN = 32
"""That are tokenised for each token of a training sequence: of English eight times as many as it takes."""
BookLoader = Callable[[], tuple[str, str, str]]
"""Reads a book: (id, title, text)."""


class Span(NamedTuple):
    """Tokens `start` to `end` (not included) of a text."""

    start: int
    end: int
    is_scored: bool
    """Whether they are scored before they are read."""


def cut_spans(total: int, first: int, stride: int) -> list[Span]:
    """The pieces of a text of `total` tokens: the first one, then strides, the last as long as the text lasts."""
    assert min(total, first, stride) > 0, f"no text, window or stride in {total}, {first}, {stride}"
    if total <= first:
        return [Span(0, total, True)]
    bounds = [0, *range(first, total, stride), total]
    return [Span(start, end, start > 0) for start, end in pairwise(bounds)]


def book_steps(
    text: TokenizedText, spans: Sequence[Span], key: str, book: str, lengths: Sequence[int]
) -> Iterator[Step]:
    """The query about every piece that is asked, and what is read before it. A key is that of the text and the first
    token of the piece; each query carries the smallest of the ascending lengths that holds it as its place.
    """
    read = 0
    for start, end, is_scored in spans:
        if not is_scored:
            continue
        before = max(0, start - 1)
        if before > read:
            chunk = text.slice_tokens(read, before)
            yield Chunk(text=chunk.text, key=f"{key}@{read}", joiner="", ids=chunk.ids)
            read = before
        prompt, target = text.slice_tokens(before, start), text.slice_tokens(start, end)
        yield Query(
            prompt=prompt.text,
            joiner="",
            key=f"{key}@{start}",
            want=Score(
                continuation=target.text,
                ids=target.ids,
                prompt_ids=prompt.ids,
                position=start,
                words=len(target.words),
            ),
            at=StreamPosition(lengths[bisect_left(lengths, end)], "tokens"),
            subtask=book,
        )


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    tokens: TokenCounts = (2**14, 2**15, 2**16, 2**17, 2**18)
    """Longest texts; k stands for 1,024."""
    window: TokenCount = 1024
    """Tokens of a book read before the first query."""
    stride: TokenCount = 512
    books: Annotated[int, Field(gt=0)] | None = None
    """How many books, drawn by the seed; None for all of them."""
    sequence_tokens: TokenCount = 8192
    """Tokens of a training sequence."""

    @property
    def lengths(self) -> list[int]:
        """The maximum lengths, ascending."""
        return sorted(set(self.tokens))


class Book(NamedTuple):
    """A text that is not in memory."""

    id: str
    title: str
    characters: int
    digest: str
    read: BookLoader

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.id} {self.title}".strip()


@dataclass(frozen=True, kw_only=True)
class Books(Task[Settings]):
    """A `readers.Task` over long texts, one episode a book."""

    books: Sequence[Book]

    @cached_property
    def n_chunks(self) -> int:
        """Pieces read, at 4 characters a token."""
        return sum(max(0, len(spans) - 1) for spans in self._estimated_spans())

    @cached_property
    def n_queries(self) -> int:
        """Strides scored, likewise."""
        return sum(span.is_scored for spans in self._estimated_spans() for span in spans)

    def _estimated_spans(self) -> Iterator[list[Span]]:
        for book, share in self._books_with_limits():
            yield self._spans(max(1, book.characters // CHARS_PER_TOKEN), share)

    def _books_with_limits(self) -> list[tuple[Book, int | None]]:
        """Every book with the most queries about it: `limit` is shared out evenly, and ends a book early."""
        books_and_limits = zip(self.books, split_limit(self.limit, len(self.books)), strict=True)
        return [(book, share) for book, share in books_and_limits if share != 0]

    def _spans(self, tokens: int, share: int | None) -> list[Span]:
        settings = self.settings
        spans = cut_spans(min(tokens, settings.lengths[-1]), settings.window, settings.stride)
        counts = accumulate(span.is_scored for span in spans)
        return [
            span
            for span, count in zip(spans, counts, strict=True)
            if share is None or count <= share
        ]

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Book]]:
        """One episode a book."""
        for book, share in self._books_with_limits():
            cut = self._tokenize(book, tokens)
            spans = self._spans(len(cut), share)
            read_ = tuple(book_steps(cut, spans, book.id, book.name, self.settings.lengths))
            yield Episode(key=self.episode_key(book.id), steps=read_), book

    def swap_context(self, own: Book, tokens: Tokens | None) -> Iterator[Step]:
        """The pieces of the next book, for the last those of the first."""
        cut = self._tokenize(self._swap_source(own), tokens)
        return book_steps(cut, self._spans(len(cut), None), own.id, "", self.settings.lengths)

    def _swap_source(self, book: Book) -> Book:
        """The next book of another text; of a mini source of one book its second."""
        following = rows_after(self.books, book)
        if self.is_synthetic and not following:
            following = self._generate_books(self.seed, 2, self.settings.lengths[-1])
        return self.first_disjoint({book.digest}, following, lambda one: {one.digest})

    def _generate_books(self, seed: int, books: int, tokens: int) -> list[Book]:
        return load_books(
            _loaders_of_rows(
                self.card, self.draw_synthetic(seed, **book_arguments(books, tokens)).rows
            )
        )

    def describe_swapped(self) -> dict[str, Json]:
        """See `Task`; a digest stands for the text of a book."""
        next_books = [self._swap_source(book) for book, _ in self._books_with_limits()]
        return {"notes": [], "digest": fingerprint(*(book.digest for book in next_books))}

    def _tokenize(
        self, book: Book, tokens: Tokens | None, part: slice = slice(None)
    ) -> TokenizedText:
        cut = TokenizedText.tokenize(book.read()[-1][part], tokens)
        if tokens is not None and len(cut) < 2:
            raise UserError(
                f"The book {book.name} of {self.source} is a single token.", "Leave it out."
            )
        return cut

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Sequences of `sequence_tokens` tokens, cut as the protocol says.

        Files are read in epochs, a book gives one sequence an epoch, from a random place; a mini source writes a new
        book for every sequence.
        """
        length, window, stride = (
            self.settings.sequence_tokens,
            self.settings.window,
            self.settings.stride,
        )

        def drawn_books() -> Iterator[Book]:
            while True:
                seed, books = training.rng.getrandbits(48), self.books
                yield from (
                    self._generate_books(seed, 1, length)
                    if self.is_synthetic
                    else training.rng.sample(books, len(books))
                )

        for number, book in enumerate(drawn_books()):
            more = (
                book.characters - CHARS_PER_SEQUENCE_TOKEN * length
            )  # a part of a long book is tokenised, not all of it
            begin = training.rng.randint(0, more) if more > 0 else 0
            cut = self._tokenize(
                book, training.tokens, slice(begin, begin + CHARS_PER_SEQUENCE_TOKEN * length)
            )
            start = training.rng.randint(0, max(0, len(cut) - length))
            chunk = cut.slice_tokens(start, start + length)
            yield (
                self.split,
                book_steps(
                    chunk, cut_spans(len(chunk), window, stride), f"{number}", book.name, [length]
                ),
            )

    def counts(self) -> dict[str, Json]:
        """Books and their characters; `lengths`: one pass gives the figures of all these."""
        characters = sum(book.characters for book in self.books)
        return {
            "books": len(self.books),
            "characters": characters,
            "lengths": self.settings.lengths,
        }

    def texts(self) -> Iterator[str]:
        """A digest stands for the text of a book."""
        return (text for book in self.books for text in (book.id, book.digest))


def load_books(loaders: Sequence[BookLoader]) -> list[Book]:
    """Every text read once; empty ones are left out, equal ids told apart."""
    seen = Counter[str]()
    return [
        Book(make_unique(name, seen), title, len(text), fingerprint(text), loader)
        for loader in loaders
        for name, title, text in [loader()]
        if text.strip()
    ]


def find_books(card: Card, request: Request) -> tuple[list[BookLoader], RawTable]:
    """The books of a source, and the source without its rows."""
    if request.source == "hub":
        rows, label = load_hub_rows(card, request.split)

        def read_hub_row(number: int) -> tuple[str, str, str]:  # a row is fetched when it is needed
            return _read_row(card, RawRow(f"{card.name} row {number}", dict(rows[number])), number)

        return [partial(read_hub_row, number) for number in range(len(rows))], RawTable(label=label)
    path, names = Path(request.source), card.splits[request.split].files
    if path.is_file() and path.suffix == ".txt":
        return [partial(_read_file, path)], RawTable(label=f"file:{path}")
    for folder in (
        *(top / name for top in archive_roots(path, card.source.folders) for name in names),
        path,
    ):
        if files := sorted(folder.glob("*.txt")):
            return [partial(_read_file, file) for file in files], RawTable(label=f"folder:{path}")
    data = load_table(card, request)
    return _loaders_of_rows(card, data.rows), data


def _read_file(file: Path) -> tuple[str, str, str]:
    with reading_file(file, max_bytes=4 * MAX_TEXT_CHARS):
        return file.stem, "", file.read_bytes().decode("utf-8-sig")


def _loaders_of_rows(card: Card, rows: Sequence[RawRow]) -> list[BookLoader]:
    return [partial(_read_row, card, row, number) for number, row in enumerate(rows)]


def _read_row(card: Card, row: RawRow, number: int) -> tuple[str, str, str]:
    """The id of a URL is its last part, which is Gutenberg's number."""
    name, title = (row.cell(card.columns.get(field, ())) for field in ("id", "title"))
    with report_row_errors(row.location):
        text = row.text(*card.columns["text"])
    return (
        str(number if name is None else name).rstrip("/").rpartition("/")[2],
        str(title or ""),
        text,
    )


def check_settings(settings: Settings) -> None:
    """Whether settings go together."""
    first, size, shortest = settings.window, settings.stride, settings.lengths[0]
    if not size < first < shortest:
        fault = f"stride={size} has to be smaller than window={first}, and that smaller than tokens={shortest}."
        raise UserError(fault, "Otherwise no context would stay, or nothing would be scored.")
    if inside := [length for length in settings.lengths[:-1] if (length - first) % size]:
        fault = f"tokens={inside[0]} ends inside a piece (they end at {first} + n x {size})."
        raise UserError(fault, "Give lengths that end with a piece, or run that length alone.")


def read(card: Card, request: Request) -> Books:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    check_settings(settings)
    if request.source == "mini":
        sizes = book_arguments(settings.books or 4, settings.lengths[-1])
        data = synthetic_table(card, request.split, request.seed, sizes)
        loaders = _loaders_of_rows(card, data.rows)
    else:
        loaders, data = find_books(card, request)
    chosen = sample_rows(loaders, settings.books, f"books {request.seed}")
    made = load_books(chosen)
    if len(made) < len(chosen):
        data.unused["no text"] = len(chosen) - len(made)
    return Books(
        card=card, request=request, settings=settings, arguments=arguments, data=data, books=made
    )
