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

from ttabench.core.amounts import CHARACTERS_A_TOKEN
from ttabench.core.errors import LONGEST_TEXT, UserError
from ttabench.core.files import reading
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.readers.base import Bound, Training, behind, drawn, fingerprint, shares, told_apart
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, parsing
from ttabench.readers.sources import Request, Table, ample, hub_rows, resolve, table, tops, twin_table
from ttabench.readers.tokens import CutText, TokenCount, TokenCounts, Tokens

PART_CHARACTERS = 32
"""That are tokenised for each token of a training sequence: of English eight times as many as it takes."""
Candidate = Callable[[], tuple[str, str, str]]
"""Reads a book: (id, title, text)."""


class Span(NamedTuple):
    """Tokens `start` to `end` (not included) of a text."""

    start: int
    end: int
    asked: bool
    """Whether they are scored before they are read."""


def spans(total: int, first: int, stride: int) -> list[Span]:
    """The pieces of a text of `total` tokens: the first one, then strides, the last as long as the text lasts."""
    assert min(total, first, stride) > 0, f"no text, window or stride in {total}, {first}, {stride}"
    if total <= first:
        return [Span(0, total, True)]
    bounds = [0, *range(first, total, stride), total]
    return [Span(start, end, start > 0) for start, end in pairwise(bounds)]


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
                continuation=target.text, ids=target.ids, prompt_ids=prompt.ids, position=start, words=len(target.words)
            ),
            at=At(lengths[bisect_left(lengths, end)], "tokens"),
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
    read: Candidate

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.id} {self.title}".strip()


@dataclass(frozen=True, kw_only=True)
class Books(Bound[Settings]):
    """A `readers.Task` over long texts, one episode a book."""

    books: Sequence[Book]

    @cached_property
    def n_observes(self) -> int:
        """Pieces read, at 4 characters a token."""
        return sum(max(0, len(pieces) - 1) for pieces in self._estimated())

    @cached_property
    def n_asks(self) -> int:
        """Strides scored, likewise."""
        return sum(span.asked for pieces in self._estimated() for span in pieces)

    def _estimated(self) -> Iterator[list[Span]]:
        for book, share in self._shared_out():
            yield self._pieces(max(1, book.characters // CHARACTERS_A_TOKEN), share)

    def _shared_out(self) -> list[tuple[Book, int | None]]:
        """Every book with the most queries about it: `limit` is shared out evenly, and ends a book early."""
        books_and_limits = zip(self.books, shares(self.limit, len(self.books)), strict=True)
        return [(book, share) for book, share in books_and_limits if share != 0]

    def _pieces(self, tokens: int, share: int | None) -> list[Span]:
        settings = self.settings
        pieces = spans(min(tokens, settings.lengths[-1]), settings.window, settings.stride)
        counts = accumulate(span.asked for span in pieces)
        return [span for span, count in zip(pieces, counts, strict=True) if share is None or count <= share]

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Book]]:
        """One episode a book."""
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
        others = behind(self.books, book)
        if self.mini and not others:
            others = self._written(self.seed, 2, self.settings.lengths[-1])
        return self.apart({book.digest}, others, lambda one: {one.digest})

    def _written(self, seed: int, books: int, tokens: int) -> list[Book]:
        return looked_at(_of_rows(self.card, self.twin(seed, **ample(books, tokens)).rows))

    def describe_others(self) -> dict[str, Json]:
        """See `Bound`; a digest stands for the text of a book."""
        next_books = [self._next(book) for book, _ in self._shared_out()]
        return {"notes": [], "digest": fingerprint(*(book.digest for book in next_books))}

    def _cut(self, book: Book, tokens: Tokens | None, part: slice = slice(None)) -> CutText:
        cut = CutText.of(book.read()[-1][part], tokens)
        if tokens is not None and len(cut) < 2:
            raise UserError(f"The book {book.name} of {self.source} is a single token.", "Leave it out.")
        return cut

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Sequences of `sequence_tokens` tokens, cut as the protocol says.

        Files are read in epochs, a book gives one sequence an epoch, from a random place; a mini source writes a new
        book for every sequence.
        """
        length, window, stride = self.settings.sequence_tokens, self.settings.window, self.settings.stride

        def drawn_books() -> Iterator[Book]:
            while True:
                seed, books = training.draws.getrandbits(48), self.books
                yield from self._written(seed, 1, length) if self.mini else training.draws.sample(books, len(books))

        for number, book in enumerate(drawn_books()):
            more = book.characters - PART_CHARACTERS * length  # a part of a long book is tokenised, not all of it
            begin = training.draws.randint(0, more) if more > 0 else 0
            cut = self._cut(book, training.tokens, slice(begin, begin + PART_CHARACTERS * length))
            start = training.draws.randint(0, max(0, len(cut) - length))
            piece = cut.range(start, start + length)
            yield self.split, steps(piece, spans(len(piece), window, stride), f"{number}", book.name, [length])

    def counts(self) -> dict[str, Json]:
        """Books and their characters; `lengths`: one pass gives the figures of all these."""
        characters = sum(book.characters for book in self.books)
        return {"books": len(self.books), "characters": characters, "lengths": self.settings.lengths}

    def texts(self) -> Iterator[str]:
        """A digest stands for the text of a book."""
        return (text for book in self.books for text in (book.id, book.digest))


def looked_at(candidates: Sequence[Candidate]) -> list[Book]:
    """Every text read once; empty ones are left out, equal ids told apart."""
    seen = Counter[str]()
    return [
        Book(told_apart(name, seen), title, len(text), fingerprint(text), candidate)
        for candidate in candidates
        for name, title, text in [candidate()]
        if text.strip()
    ]


def candidates_of(card: Card, request: Request) -> tuple[list[Candidate], Table]:
    """The books of a source, and the source without its rows."""
    if request.source == "hub":
        rows, label = hub_rows(card, request.split)

        def of_hub(number: int) -> tuple[str, str, str]:  # a row is fetched when it is needed
            return _of_row(card, RawRow(f"{card.name} row {number}", dict(rows[number])), number)

        return [partial(of_hub, number) for number in range(len(rows))], Table(label=label)
    path, names = Path(request.source), card.splits[request.split].files
    if path.is_file() and path.suffix == ".txt":
        return [partial(_of_file, path)], Table(label=f"file:{path}")
    for folder in (*(top / name for top in tops(path, card.source.folders) for name in names), path):
        if files := sorted(folder.glob("*.txt")):
            return [partial(_of_file, file) for file in files], Table(label=f"folder:{path}")
    data = table(card, request)
    return _of_rows(card, data.rows), data


def _of_file(file: Path) -> tuple[str, str, str]:
    with reading(file, most=4 * LONGEST_TEXT):
        return file.stem, "", file.read_bytes().decode("utf-8-sig")


def _of_rows(card: Card, rows: Sequence[RawRow]) -> list[Candidate]:
    return [partial(_of_row, card, row, number) for number, row in enumerate(rows)]


def _of_row(card: Card, row: RawRow, number: int) -> tuple[str, str, str]:
    """The id of a URL is its last part, which is Gutenberg's number."""
    name, title = (row.cell(card.columns.get(field, ())) for field in ("id", "title"))
    with parsing(row.place):
        text = row.text(*card.columns["text"])
    return str(number if name is None else name).rstrip("/").rpartition("/")[2], str(title or ""), text


def check(settings: Settings) -> None:
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
    settings, arguments = resolve(card, request, Settings)
    check(settings)
    if request.source == "mini":
        sizes = ample(settings.books or 4, settings.lengths[-1])
        data = twin_table(card, request.split, request.seed, sizes)
        candidates = _of_rows(card, data.rows)
    else:
        candidates, data = candidates_of(card, request)
    chosen = drawn(candidates, settings.books, f"books {request.seed}")
    made = looked_at(chosen)
    if len(made) < len(chosen):
        data.unused["no text"] = len(chosen) - len(made)
    return Books(card=card, request=request, settings=settings, arguments=arguments, data=data, books=made)
