"""Books that do not fit into a window: every stride is scored, then read (book_pieces.py). Only strides are scored.

Protocols (`protocol`):
    strides    Read the first `window` tokens unscored, then score and read `stride` tokens at a time (the sliding
               window of StreamAdapter, arXiv 2411.09289, Table 2).
    units      Score and read `unit` tokens at a time from the first one on, which is scored without context
               (Temp-LoRA, arXiv 2401.11504).

    Episode("pg19/test/718", [Observe(0..1022), Ask(1023 -> 1024..1535), Observe(1023..1534), Ask(1535 -> ...), ...])

One pass over the longest of the `tokens` gives the figures of all these lengths: a query counts at every length that
holds it, and a book that ends before counts at its own length. A book no longer than a window is scored whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from ttabench.core.errors import UserError
from ttabench.core.sizes import CHARACTERS_A_TOKEN
from ttabench.core.types import Episode, Json, Step
from ttabench.readers.base import Bound, Training, behind, fingerprint, shares, with_pieces
from ttabench.readers.book_files import Book, Shelf, books_of_rows, shelf
from ttabench.readers.book_pieces import CutText, Span, spans, steps, up_to
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount, TokenCounts, resolve
from ttabench.readers.sources import Request, twin_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import check_judges, metric

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

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a book (see `readers.Task`)."""
        for book, _ in self._shared_out():
            if book.characters <= _SHORT:
                self._cut(book, tokens)
        for book, share in self._shared_out():
            cut = self._cut(book, tokens)
            pieces = self._pieces(len(cut), share)
            read_ = tuple(steps(cut, pieces, book.id, book.name, self.settings.lengths))
            yield Episode(key=self.key(book.id), steps=read_)

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the pieces of the next book, the last with those of the first (see `readers.Task`)."""
        books = [book for book, _ in self._shared_out()]
        for book, episode in zip(books, self.episodes(tokens), strict=True):
            cut = self._cut(self._next(book), tokens)
            pieces = self._pieces(len(cut), None)
            yield with_pieces(episode, steps(cut, pieces, book.id, "", self.settings.lengths))

    def _next(self, book: Book) -> Book:
        """The next book of another text; of a mini source of one book its second."""
        books, place = self.shelf.books, self.shelf.books.index(book)
        if self.mini and len(books) == 1:
            books = _written((self.card, self.split, self.seed), 2, self.settings.lengths[-1])
        other = next((one for one in behind(books, place) if one.digest != book.digest), None)
        if other is None:
            fault = f"The book {book.name} is the only one of {self.source} here: there is no other context."
            raise UserError(fault, "Give --task-set books=2 or more, or a source with several books.")
        return other

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        next_books = [self._next(book) for book, _ in self._shared_out()]
        return {"notes": [], "digest": fingerprint(*(book.digest for book in next_books))}

    def _cut(self, book: Book, tokens: Tokens | None) -> CutText:
        cut = CutText.of(book.read(), tokens)
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
            cut = self._cut(book, training.tokens)
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
