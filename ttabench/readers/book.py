"""Books that do not fit into a window: every stride is scored, then read.

Protocols (`protocol`):
    strides    Read the first `window` tokens unscored, then score and read `stride` tokens at a time (the sliding
               window of StreamAdapter, arXiv 2411.09289, Table 2).
    units      Score and read `unit` tokens at a time from the first one on, which is scored without context
               (Temp-LoRA, arXiv 2401.11504).

    Episode("pg19/test/718", [Observe(0..1022), Ask(1023 -> 1024..1535), Observe(1023..1534), Ask(1535 -> ...), ...])

One pass over the longest of the `tokens` gives the figures of all these lengths: a query counts at every length that
holds it, and a book that ends before counts at its own length. A book no longer than a window is scored whole.

A stride is predicted from the token before it, which therefore is the prompt of its query and is read after it: what
a method keeps need not be able to predict anything by itself. The text is tokenised once; pieces carry its ids.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ttabench.core.errors import UserError
from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.readers.base import Bound, Training, fingerprint, shares
from ttabench.readers.book_files import Book, Shelf, books_of_rows, shelf
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount, TokenCounts, resolve
from ttabench.readers.sources import Request, twin_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import check_judges, metric

_WORD = re.compile(r"\S+")
PART_CHARACTERS = 32
"""That are tokenised for each token of a training sequence: of English eight times as many as it takes."""


class Span(NamedTuple):
    """Tokens `start` to `end` (not included) of a text."""

    start: int
    end: int
    asked: bool
    """Whether they are scored before they are read."""


def spans(total: int, first: int, stride: int, *, score_first: bool) -> list[Span]:
    """The pieces of a text of `total` tokens: the first one, then strides, the last as long as the text lasts."""
    assert min(total, first, stride) > 0, f"no text, window or stride in {total}, {first}, {stride}"
    if total <= first:
        return [Span(0, total, True)]
    bounds = [0, *range(first, total, stride), total]
    return [Span(start, end, start > 0 or score_first) for start, end in pairwise(bounds)]


def up_to(pieces: Sequence[Span], asked: int | None) -> list[Span]:
    """The pieces up to the one that is asked as number `asked`, counted from 1; all of them for None."""
    counts = accumulate(span.asked for span in pieces)
    return [span for span, count in zip(pieces, counts, strict=True) if asked is None or count <= asked]


@dataclass(frozen=True)
class CutText:
    """A text with its tokens."""

    text: str
    ids: tuple[int, ...]
    """Empty where no base model is known."""
    starts: tuple[int, ...]
    """Character at which each token begins, never falling."""
    words: tuple[int, ...]
    """Character at which each word begins."""

    @classmethod
    def of(cls, text: str, tokens: Tokens | None) -> CutText:
        """Tokenise a text, as a whole. Without a base model every 4 characters count as one token without an id."""
        ids, starts = list[int](), list(range(0, len(text), CHARACTERS_A_TOKEN))
        if tokens is not None:
            ids, starts = tokens.encode_with_starts(text)
        return cls(text, tuple(ids), tuple(accumulate(starts, max)), tuple(m.start() for m in _WORD.finditer(text)))

    def __len__(self) -> int:
        return len(self.starts)

    def range(self, start: int, end: int) -> CutText:
        """Only these tokens."""
        first, last = self._place(start), self._place(end)
        words = self.words[bisect_left(self.words, first) : bisect_left(self.words, last)]
        return CutText(
            self.text[first:last],
            self.ids[start:end],
            tuple(place - first for place in self.starts[start:end]),
            tuple(place - first for place in words),
        )

    def ends(self, piece: int) -> list[int]:
        """Tokens at which pieces end: with the last line that fits, or in a line that is longer than a piece."""
        ends: list[int] = []
        while (start := ends[-1] if ends else 0) < len(self):
            end = min(start + piece, len(self))
            if end < len(self):
                line = self.text.rfind("\n", 0, self.starts[end]) + 1
                token = bisect_left(self.starts, line)
                end = token if token > start else end
            ends.append(end)
        return ends

    def _place(self, token: int) -> int:
        """The character at which the part of this token begins; characters before the first token are its own."""
        if token <= 0:
            return 0
        return self.starts[token] if token < len(self.starts) else len(self.text)


def steps(text: CutText, pieces: Sequence[Span], key: str, book: str, lengths: Sequence[int]) -> Iterator[Step]:
    """The query about every piece that is asked, and what is read before it. A key is that of the text and the first
    token of the piece; each query carries the smallest of the ascending lengths that holds it as its place.
    """
    read = 0
    for start, end, asked in pieces:
        if not asked:
            continue
        before = max(0, start - 1)
        if before > read:
            piece = text.range(read, before)
            yield Observe(text=piece.text, key=f"{key}@{read}", joiner="", ids=piece.ids)
            read = before
        prompt, target = text.range(before, start), text.range(start, end)
        yield Ask(
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
            at=At(lengths[bisect_left(lengths, end)], "tokens"),
            subtask=book,
        )


_BOOKS_OF_A_TWIN = 4
_SHORT = 256
"""Characters; a longer text is more than one token."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    protocol: Literal["strides", "units"] = "strides"
    tokens: TokenCounts = (2**14, 2**15, 2**16, 2**17, 2**18)
    """Longest texts; k stands for 1,024."""
    window: TokenCount = 1024
    """Tokens of a book read before the first query (`strides`)."""
    stride: TokenCount = 512
    unit: TokenCount = 1024
    """Tokens of a unit (`units`)."""
    score_first: bool = False
    """Score the first window, too (`strides`)."""
    books: Annotated[int, Field(gt=0)] | None = None
    """How many books, drawn by the seed; None for all of them."""
    sequence_tokens: TokenCount = 8192
    """Tokens of a training sequence."""

    @property
    def first(self) -> int:
        """Tokens of the first piece."""
        return self.window if self.protocol == "strides" else self.unit

    @property
    def next(self) -> int:
        """Tokens of every further one."""
        return self.stride if self.protocol == "strides" else self.unit

    @property
    def lengths(self) -> list[int]:
        """The maximum lengths, ascending."""
        return sorted(set(self.tokens))

    def spans(self, total: int) -> list[Span]:
        """The pieces of a text of so many tokens."""
        return spans(total, self.first, self.next, score_first=self.score_first or self.protocol == "units")


@dataclass(frozen=True, kw_only=True)
class Books(Bound[Settings]):
    """A `readers.Task` over long texts, one episode a book."""

    shelf: Shelf

    @cached_property
    def n_observes(self) -> int:
        """Pieces read, at 4 characters a token."""
        return sum(max(0, len(pieces) - 1) for pieces in self._estimated())

    @cached_property
    def n_asks(self) -> int:
        """Strides scored, likewise."""
        return sum(span.asked for pieces in self._estimated() for span in pieces)

    def _estimated(self) -> list[list[Span]]:
        return [
            self._pieces(max(1, book.characters // CHARACTERS_A_TOKEN), share) for book, share in self._shared_out()
        ]

    def _shared_out(self) -> list[tuple[Book, int | None]]:
        """Every book with the most queries about it: `limit` is shared out evenly, and ends a book early."""
        books = self.shelf.books
        books_and_limits = zip(books, shares(self.limit, len(books)), strict=True)
        return [(book, share) for book, share in books_and_limits if share != 0]

    def _pieces(self, tokens: int, share: int | None) -> list[Span]:
        return up_to(self.settings.spans(min(tokens, self.settings.lengths[-1])), share)

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        same = "all books of the source are scored: every seed gives the same figures"
        return [same] if self.shelf.whole and not self.mini else []

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Book]]:
        """One episode a book."""
        for book, _ in self._shared_out():
            if book.characters <= _SHORT:
                self._cut(book, tokens)
        for book, share in self._shared_out():
            cut = self._cut(book, tokens)
            pieces = self._pieces(len(cut), share)
            read_ = tuple(steps(cut, pieces, book.id, book.name, self.settings.lengths))
            yield Episode(key=self.key(book.id), steps=read_), book

    def instead(self, own: Book, tokens: Tokens | None) -> Iterator[Step]:
        """The pieces of the next book, for the last those of the first."""
        cut = self._cut(self._next(own), tokens)
        return steps(cut, self._pieces(len(cut), None), own.id, "", self.settings.lengths)

    def _next(self, book: Book) -> Book:
        """The next book of another text; of a mini source of one book its second."""
        books = self.shelf.books
        if self.mini and len(books) == 1:
            books = _written((self.card, self.split, self.seed), 2, self.settings.lengths[-1])
        return self.another(self.shelf.books.index(book), books, "book", lambda one: one.digest)

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        next_books = [self._next(book) for book, _ in self._shared_out()]
        return {"notes": [], "digest": fingerprint(*(book.digest for book in next_books))}

    def _cut(self, book: Book, tokens: Tokens | None, part: slice = slice(None)) -> CutText:
        cut = CutText.of(book.read()[part], tokens)
        if tokens is not None and len(cut) < 2:
            raise UserError(f"The book {book.name} of {self.source} is a single token.", "Leave it out.")
        return cut

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Sequences of `sequence_tokens` tokens, cut as the protocol says.

        Files are read in epochs, a book gives one sequence an epoch, from a random place; a mini source writes a new
        book for every sequence.
        """
        length = self.settings.sequence_tokens
        for number, book in enumerate(self._drawn(training.draws, length)):
            more = book.characters - PART_CHARACTERS * length  # a part of a long book is tokenised, not all of it
            begin = training.draws.randint(0, more) if more > 0 else 0
            cut = self._cut(book, training.tokens, slice(begin, begin + PART_CHARACTERS * length))
            start = training.draws.randint(0, max(0, len(cut) - length))
            piece = cut.range(start, start + length)
            yield self.split, steps(piece, self.settings.spans(len(piece)), f"{number}", book.name, [length])

    def _drawn(self, draws: random.Random, length: int) -> Iterator[Book]:
        while True:
            place, books = (self.card, self.split, draws.getrandbits(48)), self.shelf.books
            yield from _written(place, 1, length) if self.mini else draws.sample(books, len(books))

    def counts(self) -> dict[str, Json]:
        """Books and their characters; `lengths`: one pass gives the figures of all these."""
        characters = sum(book.characters for book in self.shelf.books)
        return {"books": len(self.shelf.books), "characters": characters, "lengths": self.settings.lengths}

    def texts(self) -> Iterator[str]:
        """A digest stands for the text of a book."""
        return (text for book in self.shelf.books for text in (book.id, book.digest))


def _written(place: tuple[Card, str, int], books: int, tokens: int) -> tuple[Book, ...]:
    """Books of the miniature world of at least about so many tokens; `place` is card, split and seed."""
    card, split, seed = place
    return books_of_rows(card, twin_table(card, split, seed, books, {"tokens": tokens * 9 // 8 + 64}).rows)


def check(card: Card, settings: Settings) -> None:
    """Whether settings and card go together."""
    check_judges(card.name, map(metric, card.metrics), "score")
    if settings.protocol == "strides" and settings.window <= settings.stride:
        fault = f"window={settings.window} is not larger than stride={settings.stride}"
        raise UserError(f"{fault}: no context would stay.", "Give --task-set window=N above the stride.")
    *between, _ = settings.lengths
    shortest = settings.lengths[0]
    if shortest <= settings.first:
        fault = f"tokens={shortest} is not longer than the first {settings.first} tokens: nothing would be scored"
        raise UserError(f"{fault}.", "Give --task-set tokens=N with a larger N.")
    for length in between:
        if (length - settings.first) % settings.next:
            fault = f"tokens={length} ends inside a piece (they end at {settings.first} + n x {settings.next})"
            raise UserError(f"{fault}.", "Give lengths that end with a piece, or run that length alone.")


def read(card: Card, request: Request) -> Books:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    check(card, settings)
    if request.source == "mini":
        place = (card, request.split, request.seed)
        made = _written(place, settings.books or _BOOKS_OF_A_TWIN, settings.lengths[-1])
        books = Shelf(books=made, label="mini", dropped={}, whole=False)
    else:
        books = shelf(card, request, settings.books)
    return Books(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=books.label,
        data_notes=tuple(books.notes),
        unused=books.dropped,
        shelf=books,
    )
