"""Where rows come from: the miniature world, the hub, or the user's file or folder in any published layout.

A folder holds one file a split (names on the card), numbered parquet shards as the hub stores them, or what
`datasets.save_to_disk` wrote. A split that a paper cut out of a published split by row numbers is cut only where the
number of rows is the published one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttabench.core.environment import offline_if_unreachable
from ttabench.core.errors import UserError
from ttabench.readers.article_files import Paragraph, paragraphs, split_key
from ttabench.readers.cards import Card, Split
from ttabench.readers.faults import brief
from ttabench.readers.formats import READABLE, rows
from ttabench.readers.generators import generated
from ttabench.readers.layouts import find, places, published_name, serving, unlike
from ttabench.readers.raw import RawRow, malformed, proper


@dataclass(frozen=True, kw_only=True)
class Request:
    """A user's request for a task; see `readers.load`."""

    source: str = "mini"
    split: str = "test"
    seed: int = 0
    limit: int | None = None
    options: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of one split."""

    rows: list[RawRow]
    label: str
    """Stands in records and tables as the source."""
    where: str
    """Names the file, folder or data set in error messages."""
    folder: Path | None = None
    """Where companion files may lie."""
    whole: bool = False
    """These are the rows of a published split, of which the wanted split may be a range."""
    notes: tuple[str, ...] = ()
    years: tuple[int, int] | None = None
    """First and last year of the articles whose rows the wanted split is."""


def table(card: Card, request: Request) -> Table:
    """The rows of `request.split` from the hub, a file or a folder (the mini source goes through `twin_rows`).

    Raises:
        UserError: the source or the split is not there, holds no rows, or a row cannot be read.
    """
    split = card.splits[request.split]
    if request.source == "hub":
        rows = _from_hub(card, request.split)
    elif (path := Path(request.source)).is_dir():
        rows = _from_folder(card, path, request.split)
    elif path.exists():
        rows = _from_file(card, path, request.split)
    else:
        raise UserError(
            f"No file or folder {request.source!r} to read {card.name} from.",
            "Check the path; --source takes mini, hub, or the path of the data.",
        )
    if not rows.rows:
        raise UserError(f"{rows.where} holds no rows for {card.name}.", "Give a source with rows.")
    return _cut(rows, split, request.split) if rows.whole else rows


def twin_table(card: Card, split: str, seed: int, documents: int, arguments: Mapping[str, object]) -> Table:
    """Rows of the miniature twin: `documents` texts of the split that stands for this one, drawn from a seed.

    Raises:
        UserError: the generator refuses its arguments, or they leave no rows.
    """
    split_of_twin = card.splits[split].twin
    made = generated(card, list, split_of_twin, seed, documents, **arguments)
    if not made:
        raise UserError(f"The twin of {card.name} gives no rows with {dict(arguments)}.", "Change --task-set.")
    rows = [RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(made)]
    return Table(rows=rows, label="mini", where=f"the miniature twin of {card.name}")


def articles(card: Card, data: Table, keys: Iterable[str]) -> dict[str, Paragraph]:
    """Texts by reference, from the companion beside the questions; see the card's `source.articles`.

    Args:
        card: names the companion.
        data: the questions.
        keys: of the texts, where only those that are wanted are opened.

    Raises:
        UserError: there is none, or it lacks the columns.
    """
    wanted = card.source.articles
    folder = None if wanted is None else data.folder
    beside = find(Split(files=wanted.files), [folder]) if wanted is not None and folder is not None else None
    if wanted is None or folder is None or beside is None:
        there = [] if wanted is None or folder is None else [folder / name for name in wanted.folders]
        held = next((place for place in there if place.is_dir()), None)
        if held is not None:
            return paragraphs(held, keys)
        columns = " or ".join(repr(name) for name in card.columns["text"])
        hint = card.source.how
        if wanted is not None:
            hint += f" Put them beside it as {wanted.files[0]}.csv with columns {wanted.key[0]}, {wanted.text[0]}"
            hint += f", or as a folder {wanted.folders[0]} of one file each." if wanted.folders else "."
        raise UserError(f"{data.where} holds questions without texts (no column {columns}).", hint)
    texts: dict[str, Paragraph] = {}
    for row in (row for path in beside.paths for row in rows(path)):
        key = next((row.values[name] for name in wanted.key if name in row.values), None)
        text = next((row.values[name] for name in wanted.text if name in row.values), None)
        if not isinstance(key, str | int) or not isinstance(text, str):
            raise malformed(row.place, f"needs a column {wanted.key[0]!r} and a text column {wanted.text[0]!r}")
        article, number = split_key(str(key)) or ("", None)
        texts[str(key)] = Paragraph(proper(row.place, "the article", text), article=article, number=number)
    return texts


def _cut(whole: Table, split: Split, name: str) -> Table:
    """Keep the published row range of a whole published split, or the years that it is to be cut to."""
    if split.years is not None:
        return replace(whole, years=split.years)
    if split.rows is None:
        return whole
    first, last = split.rows
    if len(whole.rows) != split.of:
        raise UserError(
            f"Split {name!r} is rows {first} to {last} of {split.of}, but {whole.where} has {len(whole.rows)} rows.",
            "Give the published file, or name a file of your own with --source FILE to use all of it.",
        )
    return replace(whole, rows=whole.rows[first:last], notes=(*whole.notes, f"rows {first} to {last} of {split.of}"))


def _from_file(card: Card, path: Path, name: str) -> Table:
    serving(card, name, published_name(path), path)  # a file of another split is not even read
    rows_read = list(rows(path))
    whole, notes = _serves(card, name, published_name(path), path, len(rows_read))
    return Table(rows=rows_read, label=f"file:{path}", where=str(path), folder=path.parent, whole=whole, notes=notes)


def _serves(card: Card, wanted: str, name: str, where: Path, count: int) -> tuple[bool, tuple[str, ...]]:
    """(whether `count` rows are a published split of which the wanted one is a range, notes); see `layouts.serving`."""
    split = card.splits[wanted]
    if split.rows is not None and count == split.of:
        return True, ()
    if split.years is not None and name in split.whole:
        return True, ()
    if split.rows is not None and name not in split.files:
        return False, (
            f"{where} has {count} rows, not the published {split.of}: all of them serve as split {wanted!r}",
        )
    return False, serving(card, wanted, name, where)


def _from_folder(card: Card, folder: Path, name: str) -> Table:
    split = card.splits[name]
    label = f"folder:{folder}"
    if any((folder / marker).is_file() for marker in ("dataset_dict.json", "state.json")):
        return _saved(card, folder, name)
    files = find(split, places(card, folder))
    if files is None:
        wanted = ", ".join(split.files + split.whole) or "no name: any file may be this split"
        fault = f"No file of split {name!r} of {card.name} in {folder} (looked for {wanted}"
        hint = (
            "Give the folder with the files of all splits."
            if card.parts
            else "Name the file itself with --source FILE."
        )
        raise UserError(f"{fault}; {', '.join(READABLE)}, .gz too).", f"{hint} {card.source.how}".strip())
    rows_read = [row for path in files.paths for row in rows(path)]
    return Table(
        rows=rows_read,
        label=label,
        where=files.where,
        folder=files.paths[0].parent,
        whole=files.whole,
        notes=unlike(files, len(rows_read)),
    )


def _saved(card: Card, folder: Path, name: str) -> Table:
    """Rows of a `datasets.save_to_disk` folder: of the split by its name, or of the one split that was saved."""
    import datasets
    import pyarrow as arrow

    split, label = card.splits[name], f"folder:{folder}"
    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException) as error:
        raise UserError(f"Cannot load the saved data set {folder} ({_first_line(error)}).", "Save it again.") from None
    if not isinstance(saved, datasets.DatasetDict):
        serving(card, name, str(saved.split or ""), folder)
        whole, notes = _serves(card, name, str(saved.split or ""), folder, len(saved))
        rows = list(_numbered(saved, str(folder)))
        return Table(rows=rows, label=label, where=str(folder), folder=folder, whole=whole, notes=notes)
    for names, whole in ((split.files, False), (split.whole, True)):
        for key in names:
            if key in saved:
                rows = list(_numbered(saved[key], f"{folder} {key}"))
                return Table(rows=rows, label=label, where=str(folder), folder=folder, whole=whole)
    raise UserError(
        f"The saved data set {folder} has no split {name!r}: it has {', '.join(map(brief, saved))}.",
        f"Save one of {', '.join(split.files + split.whole)}.",
    )


def _from_hub(card: Card, name: str) -> Table:
    loaded, label = hub_rows(card, name)
    return Table(rows=list(_numbered(loaded, label)), label=label, where=label, whole=True)


def hub_rows(card: Card, name: str) -> tuple[Any, str]:
    """The data set of a split on the hub, not in memory, and the label of the source.

    Raises:
        UserError: it is on no hub, or cannot be loaded.
    """
    import datasets

    hub, split = card.source.hub, card.splits[name].hub
    if hub is None or split is None:
        fault = f"Split {name!r} of {card.name}" if hub else f"The task {card.name}"
        raise UserError(f"{fault} is on no hub.", f"{card.source.how} Then give --source DIR.")
    label = f"hub:{hub.path}@{hub.commit[:8] or 'unpinned'}"
    offline_if_unreachable()
    try:
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        hint = "Give local files with --source DIR" + (", or --source mini." if card.twin else ".")
        raise UserError(f"Cannot load {hub.path} from the hub ({_first_line(error)}).", hint) from None
    return loaded, label


def _numbered(values: Iterator[dict[str, object]], where: str) -> Iterator[RawRow]:
    for number, row in enumerate(values):
        yield RawRow(f"{where} row {number}", row)


def _first_line(error: Exception) -> str:
    return brief(str(error).strip().splitlines()[0], 160) if str(error).strip() else type(error).__name__
