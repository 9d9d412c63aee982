"""Where books come from: PG19's own files, any folder of .txt, rows of the hub or of tables, the miniature world.

    pg19/metadata.csv            718,Tono Bungay,1909,http://www.gutenberg.org/ebooks/718     (no header)
    pg19/test/718.txt            the text, UTF-8; bytes and line ends are taken as they are

Texts are read when they are needed, one at a time: the training split is 11 GB.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ttabench.core.checked_file import Unreadable, plain
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.description import fingerprint
from ttabench.readers.faults import brief
from ttabench.readers.formats import MAX_CELL
from ttabench.readers.layouts import serving, tops
from ttabench.readers.raw import LONGEST, RawRow, malformed, proper
from ttabench.readers.sources import Request, hub_rows, table

METADATA = "metadata.csv"


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


Candidate = tuple[str, str, Callable[[], str]]
"""(id, title, text) of a book not yet looked at."""


def shelf(card: Card, request: Request, count: int | None) -> Shelf:
    """The books of `request.split` from the hub, a file or a folder; with `count` so many, drawn by the seed.

    Raises:
        UserError: the source or the split is not there, a text is not UTF-8, a row has no text, or all are empty.
    """
    candidates, label, notes = _candidates(card, request)
    chosen: Sequence[int] = range(len(candidates))
    if count is not None and count < len(candidates):
        chosen = sorted(random.Random(f"books {request.seed}").sample(chosen, count))
    books, dropped = _looked_at([candidates[number] for number in chosen])
    if not books:
        raise UserError(f"{request.source} holds no text for {card.name}.", "Give a source with books.")
    return Shelf(books=books, label=label, dropped=dropped, whole=len(chosen) == len(candidates), notes=notes)


def books_of_rows(card: Card, rows: Sequence[RawRow]) -> tuple[Book, ...]:
    """The books of rows in memory."""
    return _looked_at([_of_row(card, row, number) for number, row in enumerate(rows)])[0]


def _looked_at(candidates: Sequence[Candidate]) -> tuple[tuple[Book, ...], dict[str, int]]:
    """Every text read once: empty ones are counted, not kept; equal ids are told apart."""
    books: list[Book] = []
    seen: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for name, title, read in candidates:
        text = read()
        if not text.strip():
            dropped["no text"] += 1
            continue
        seen[name] += 1
        id_ = name if seen[name] == 1 else f"{name}#{seen[name]}"
        books.append(Book(id=id_, title=title, characters=len(text), digest=fingerprint(text), read=read))
    return tuple(books), dict(dropped)


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
    try:
        content = plain(file, LONGEST).read_bytes()
    except (OSError, Unreadable) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot read {file} ({reason}).", "Check the path and its rights.") from None
    try:
        return proper(str(file), "the text", content.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        fault = f"{file} byte {error.start}: not UTF-8 text (0x{content[error.start]:02x})"
        raise UserError(f"{fault}.", "Save the file as UTF-8.") from None


def _titles(file: Path) -> dict[str, str]:
    """Title by book id."""
    titles: dict[str, str] = {}
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(_text_of(file).splitlines())
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise malformed(f"{file} line {reader.line_num}", f"not valid csv ({error})") from None
        if cells is None:
            return titles
        if cells and len(cells) < 2:
            fault = "one cell where the id and the title of a book are expected"
            raise malformed(f"{file} line {reader.line_num}", fault)
        if cells:
            titles[cells[0].strip()] = cells[1].strip()


def _of_row(card: Card, row: RawRow, number: int) -> Candidate:
    name, title = _named(card, row.values, number)
    text = _cell(card, "text", row.values)
    if not isinstance(text, str):
        columns = " or ".join(repr(name) for name in card.columns["text"])
        raise malformed(row.place, f"the column {columns} holds {brief(text)}, no text")
    proper(row.place, "its text", text)
    for cell in (name, title):
        proper(row.place, "its id or title", cell)
    return name, title, lambda: text


def _of_hub(card: Card, rows: Sequence[Mapping[str, object]], values: Mapping[str, object], number: int) -> Candidate:
    def read() -> str:
        return _of_row(card, RawRow(f"{card.name} row {number}", dict(rows[number])), number)[2]()

    return *_named(card, values, number), read


def _named(card: Card, values: Mapping[str, object], number: int) -> tuple[str, str]:
    """Id (of a URL its last part, which is Gutenberg's number) and title."""
    name, title = _cell(card, "id", values), _cell(card, "title", values)
    return str(number if name is None else name).rstrip("/").rpartition("/")[2], str(title or "")


def _cell(card: Card, field: str, values: Mapping[str, object]) -> object:
    return next((values[column] for column in card.columns.get(field, ()) if column in values), None)
