"""Books of a folder, a table or the hub, each read when it is needed: the training split of PG-19 is 11 GB.

pg19/metadata.csv            718,Tono Bungay,1909,http://www.gutenberg.org/ebooks/718     (no header)
pg19/test/718.txt            the text, UTF-8
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import reading
from ttabench.core.errors import UserError
from ttabench.readers.base import drawn, fingerprint, told_apart
from ttabench.readers.cards import Card
from ttabench.readers.formats import RawRow, text_of
from ttabench.readers.layouts import serving, tops
from ttabench.readers.sources import Request, hub_rows, table

METADATA = "metadata.csv"
Candidate = tuple[str, str, Callable[[], str]]
"""(id, title, text) of a book not yet looked at."""


@dataclass(frozen=True, kw_only=True)
class Book:
    """A text that is not in memory."""

    id: str
    title: str
    characters: int
    digest: str
    read: Callable[[], str]

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.id} {self.title}".strip()


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The books of a split."""

    books: tuple[Book, ...]
    label: str
    """Stands in records and tables as the source."""
    dropped: Mapping[str, int]
    whole: bool
    """Every book of the source is here."""
    notes: tuple[str, ...] = ()
    """Notes on the split for a record."""


def shelf(card: Card, request: Request, count: int | None) -> Shelf:
    """The books of `request.split` from the hub, a file or a folder; with `count` so many, drawn by the seed."""
    candidates, label, notes = _candidates(card, request)
    chosen = drawn(candidates, count, f"books {request.seed}")
    books, dropped = _looked_at(chosen)
    if not books:
        raise UserError(f"{request.source} holds no text for {card.name}.", "Give a source with books.")
    return Shelf(books=books, label=label, dropped=dropped, whole=len(chosen) == len(candidates), notes=notes)


def books_of_rows(card: Card, rows: Sequence[RawRow]) -> tuple[Book, ...]:
    """The books of rows in memory."""
    return _looked_at([_of_row(card, row, number) for number, row in enumerate(rows)])[0]


def _looked_at(candidates: Sequence[Candidate]) -> tuple[tuple[Book, ...], dict[str, int]]:
    """Every text read once: empty ones are counted, not kept; equal ids are told apart."""
    books, seen = list[Book](), Counter[str]()
    for name, title, read in candidates:
        if (text := read()).strip():
            unique = told_apart(name, seen)
            books.append(Book(id=unique, title=title, characters=len(text), digest=fingerprint(text), read=read))
    return tuple(books), dict(+Counter({"no text": len(candidates) - len(books)}))


def _candidates(card: Card, request: Request) -> tuple[list[Candidate], str, tuple[str, ...]]:
    """(books, label of the source, notes about their split)."""
    if request.source == "hub":
        rows, label = hub_rows(card, request.split)
        short = [name for name in rows.column_names if name not in card.columns["text"]]
        named = rows.select_columns(short) if short else [{}] * len(rows)
        return [_of_hub(card, rows, dict(values), number) for number, values in enumerate(named)], label, ()
    path = Path(request.source)
    if path.is_file() and path.suffix == ".txt":
        notes = serving(card, request.split, path.absolute().parent.name, path)
        return _of_files([path]), f"file:{path}", notes
    for folder in _folders(card, request.split, path):
        files = sorted(folder.glob("*.txt"))
        if files:
            notes = serving(card, request.split, folder.absolute().name, folder)
            return _of_files(files), f"folder:{path}", notes
    raw_rows = table(card, request)
    return [_of_row(card, row, number) for number, row in enumerate(raw_rows.rows)], raw_rows.label, raw_rows.notes


def _folders(card: Card, split: str, base: Path) -> list[Path]:
    """Where books of a split may lie: in the split's folder, else in a folder that has no folders of splits at all."""
    above = tops(base, card.source.folders)
    folders = [top / name for top in above for name in card.splits[split].files if (top / name).is_dir()]
    every = [top / name for top in above for one_split in card.splits.values() for name in one_split.files]
    return folders or ([base] if base.is_dir() and not any(place.is_dir() for place in every) else [])


def _of_files(files: Sequence[Path]) -> list[Candidate]:
    folder = files[0].parent
    titles: dict[str, str] = {}
    for place in (folder.parent / METADATA, folder / METADATA):
        titles |= _titles(place) if place.is_file() else {}
    return [(file.stem, titles.get(file.stem, ""), partial(_text_of, file)) for file in files]


def _text_of(file: Path) -> str:
    with reading(file, most=4 * LONGEST_TEXT):
        return file.read_bytes().decode("utf-8-sig")


def _titles(file: Path) -> dict[str, str]:
    """Title by book id."""
    with reading(file, most=4 * LONGEST_TEXT):
        cells = [row for row in csv.reader(_text_of(file).splitlines()) if row]
        return {name.strip(): title.strip() for name, title, *_ in cells}


def _of_row(card: Card, row: RawRow, number: int) -> Candidate:
    text = text_of(row.place, f"the column {card.columns['text'][0]!r}", row.cell(card.columns["text"]))
    return *_named(card, row, number), lambda: text


def _of_hub(card: Card, rows: Sequence[Mapping[str, object]], values: Mapping[str, object], number: int) -> Candidate:
    def read() -> str:
        return _of_row(card, RawRow(f"{card.name} row {number}", dict(rows[number])), number)[2]()

    return *_named(card, RawRow("", dict(values)), number), read


def _named(card: Card, row: RawRow, number: int) -> tuple[str, str]:
    """Id (of a URL its last part, which is Gutenberg's number) and title."""
    name, title = (row.cell(card.columns.get(field, ())) for field in ("id", "title"))
    return str(number if name is None else name).rstrip("/").rpartition("/")[2], str(title or "")
