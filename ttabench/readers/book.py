"""Books longer than a context window: every stride is scored, then read.

The first `window` tokens are read unscored. Then `stride` tokens at a time are scored and read (the
sliding window of StreamAdapter, arXiv 2411.09289, Table 2).

    Episode("pg19/test/718", [Chunk(0..1022), Query(1023 -> 1024..1535), Chunk(1023..1534), ...])

One pass over the longest of the `tokens` gives the metrics of all lengths. A query counts at every
length that contains it. A shorter book counts at its own length. A book no longer than the window
is scored whole.

A stride is predicted from the token before it. That token is the prompt of the query and is read
after it, so a method can predict without storing it. The text is tokenised once, and chunks carry
its token ids.

Books of a folder, a table or the hub are read on demand: the training split of PG-19 is 11 GB.

    pg19/test/718.txt            the text, UTF-8
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import PositiveInt

from ttabench.core.amounts import CHARS_PER_TOKEN
from ttabench.core.errors import MAX_TEXT_CHARS, UserError
from ttabench.core.files import reading_file
from ttabench.core.types import Chunk, Episode, Json, Query, Score, Step, StreamPosition
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    fingerprint,
    make_unique,
    rows_after,
    sample_rows,
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
"""Characters tokenised per token of a training sequence: eight times what English needs."""
BookLoader = Callable[[], tuple[str, str, str]]
"""Reads a book: (id, title, text)."""


class Span(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a text."""

    start: int
    end: int
    is_scored: bool
    """True if the tokens are scored before they are read."""


def cut_spans(total: int, first: int, stride: int) -> list[Span]:
    """Cut `total` tokens into a first span and strides; the last one may be shorter."""
    assert min(total, first, stride) > 0, f"sizes must be positive: {total}, {first}, {stride}"
    if total <= first:
        return [Span(0, total, True)]
    bounds = [0, *range(first, total, stride), total]
    return [Span(start, end, start > 0) for start, end in pairwise(bounds)]


def book_steps(
    text: TokenizedText, spans: Sequence[Span], key: str, book: str, lengths: Sequence[int]
) -> Iterator[Step]:
    """Yield a query for every scored span, and the chunks to read before it.

    A key is made of the text's key and the first token of the span. The position of a query is the
    smallest of the ascending `lengths` that contains it.
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
    """Protocol settings of this reader; `--task-set` may change them."""

    tokens: TokenCounts = (2**14, 2**15, 2**16, 2**17, 2**18)
    """Maximum lengths of texts; k means 1,024."""
    window: TokenCount = 1024
    """Tokens of a book read before the first query."""
    stride: TokenCount = 512
    books: PositiveInt | None = None
    """Number of books, drawn with the seed; None for all."""
    sequence_tokens: TokenCount = 8192
    """Tokens of a training sequence."""

    @property
    def lengths(self) -> list[int]:
        """The maximum lengths, ascending."""
        return sorted(set(self.tokens))


class Book(NamedTuple):
    """A text that is loaded on demand."""

    id: str
    title: str
    characters: int
    digest: str
    read: BookLoader

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.id} {self.title}".strip()


@dataclass(frozen=True)
class Books(Task[Settings]):
    """A `Task` over long texts, one episode per book."""

    books: Sequence[Book]
    is_score_first = True

    @cached_property
    def n_chunks(self) -> int:
        """Number of chunks, estimated at 4 characters per token."""
        return sum(len(spans) - 1 for spans in self._estimated_spans())

    @cached_property
    def n_queries(self) -> int:
        """Number of scored strides, estimated at 4 characters per token."""
        return sum(span.is_scored for spans in self._estimated_spans() for span in spans)

    def _estimated_spans(self) -> Iterator[list[Span]]:
        for book, share in self._books_with_limits():
            yield self._spans(max(1, book.characters // CHARS_PER_TOKEN), share)

    def _books_with_limits(self) -> list[tuple[Book, int | None]]:
        """Pair every book with its maximum number of queries; reaching it ends the book early."""
        return [pair for pair in divide_limit(self.limit, self.books) if pair[1] != 0]

    def _spans(self, tokens: int, share: int | None) -> list[Span]:
        settings = self.settings
        spans = cut_spans(min(tokens, settings.lengths[-1]), settings.window, settings.stride)
        # only the first span may be unscored
        return spans if share is None else spans[: share + 1]

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Book]]:
        """Yield one episode per book."""
        for book, share in self._books_with_limits():
            cut = self._tokenize(book, tokens)
            spans = self._spans(len(cut), share)
            steps = tuple(book_steps(cut, spans, book.id, book.name, self.settings.lengths))
            yield Episode(key=self.episode_key(book.id), steps=steps), book

    def swap_context(self, own: Book, tokens: Tokens | None) -> Iterator[Step]:
        """Return the chunks of the next book; the last book gets those of the first."""
        cut = self._tokenize(self._swap_source(own), tokens)
        return book_steps(cut, self._spans(len(cut), None), own.id, "", self.settings.lengths)

    def _swap_source(self, book: Book) -> Book:
        """Return the next book with another text; for a mini source of one book, its second."""
        following = rows_after(self.books, book)
        if self.is_synthetic and not following:
            following = self._generate_books(self.seed, 2, self.settings.lengths[-1])
        return self.first_disjoint({book.digest}, following, lambda other: {other.digest})

    def _generate_books(self, seed: int, books: int, tokens: int) -> list[Book]:
        return load_books(
            _loaders_of_rows(
                self.card, self.draw_synthetic(seed, **book_arguments(books, tokens)).rows
            )
        )

    def describe_swapped(self) -> dict[str, Json]:
        """Describe the swapped contexts as `Task` does, with a digest per book in place of its
        text.
        """
        next_books = [self._swap_source(book) for book, _ in self._books_with_limits()]
        return {"notes": [], "digest": fingerprint(*(book.digest for book in next_books))}

    def _tokenize(
        self, book: Book, tokens: Tokens | None, part: slice = slice(None)
    ) -> TokenizedText:
        cut = TokenizedText.tokenize(book.read()[-1][part], tokens)
        if tokens is not None and len(cut) < 2:
            raise UserError(
                f"The book {book.name} of {self.source} is a single token.", "Remove it."
            )
        return cut

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield sequences of `sequence_tokens` tokens, cut as the protocol says.

        Files are read in epochs: each book gives one sequence per epoch, from a random position. A
        mini source generates a new book for every sequence.
        """
        settings = self.settings
        length = settings.sequence_tokens

        def drawn_books() -> Iterator[Book]:
            while True:
                seed, books = training.rng.getrandbits(48), self.books
                yield from (
                    self._generate_books(seed, 1, length)
                    if self.is_synthetic
                    else training.rng.sample(books, len(books))
                )

        for number, book in enumerate(drawn_books()):
            # tokenising a whole long book would take too long
            part_chars = CHARS_PER_SEQUENCE_TOKEN * length
            surplus = book.characters - part_chars
            begin = training.rng.randint(0, surplus) if surplus > 0 else 0
            cut = self._tokenize(book, training.tokens, slice(begin, begin + part_chars))
            start = training.rng.randint(0, max(0, len(cut) - length))
            chunk = cut.slice_tokens(start, start + length)
            spans = cut_spans(len(chunk), settings.window, settings.stride)
            yield self.split, book_steps(chunk, spans, f"{number}", book.name, [length])

    def counts(self) -> dict[str, Json]:
        """Count books and characters; `lengths`: text lengths whose metrics come from a single
        pass.
        """
        characters = sum(book.characters for book in self.books)
        return {
            "books": len(self.books),
            "characters": characters,
            "lengths": self.settings.lengths,
        }

    def texts(self) -> Iterator[str]:
        """Yield the id and the digest of every book, in place of its text."""
        return (text for book in self.books for text in (book.id, book.digest))


def load_books(loaders: Sequence[BookLoader]) -> list[Book]:
    """Read every text once; leave out empty ones and number repeated ids."""
    seen = Counter[str]()
    return [
        Book(make_unique(name, seen), title, len(text), fingerprint(text), loader)
        for loader in loaders
        for name, title, text in [loader()]
        if text.strip()
    ]


def find_books(card: Card, request: Request) -> tuple[list[BookLoader], RawTable]:
    """Return loaders for the books of a source, and the source without its rows."""
    if request.source == "hub":
        rows, label = load_hub_rows(card, request.split)

        def read_hub_row(number: int) -> tuple[str, str, str]:
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
    """Return (id, title, text) of a row; a URL's last part, Gutenberg's number, is the id."""
    name, title = (row.cell(card.columns.get(field, ())) for field in ("id", "title"))
    with report_row_errors(row.location):
        text = row.text(*card.columns["text"])
    return (
        str(number if name is None else name).rstrip("/").rpartition("/")[2],
        str(title or ""),
        text,
    )


def read(card: Card, request: Request) -> Books:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    first, size, shortest = settings.window, settings.stride, settings.lengths[0]
    if not size < first < shortest:
        fault = f"stride={size}, window={first} and tokens={shortest} must increase in this order."
        raise UserError(
            fault, "Set a smaller --task-set stride=N or window=N, or a larger tokens=N."
        )
    if inside := [length for length in settings.lengths[:-1] if (length - first) % size]:
        fault = f"tokens={inside[0]} ends inside a chunk (chunks end at {first} + n x {size})."
        raise UserError(fault, "Use lengths that end with a chunk, or run that length alone.")
    if request.source == "mini":
        sizes = book_arguments(settings.books or 4, settings.lengths[-1])
        data = synthetic_table(card, request.split, request.seed, sizes)
        loaders = _loaders_of_rows(card, data.rows)
    else:
        loaders, data = find_books(card, request)
    selected = sample_rows(loaders, settings.books, f"books {request.seed}")
    books = load_books(selected)
    if len(books) < len(selected):
        data.unused["no text"] = len(selected) - len(books)
    return Books(card, request, settings, arguments, data, books)
