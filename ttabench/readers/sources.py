"""Where rows come from: the miniature world, the hub, or the user's file or folder in any published layout.

A folder holds one file a split (names on the card), numbered parquet shards as the hub stores them, or what
`datasets.save_to_disk` wrote. A split that a paper cut out of a published split by row numbers is cut only where the
number of rows is the published one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ttabench.environment import offline_if_unreachable
from ttabench.errors import UserError
from ttabench.readers.cards import Card, Split, brief
from ttabench.readers.formats import READABLE, RawRow, malformed, readable, rows, stem

_SHARD = re.compile(r"^(?P<name>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?$")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asked of a task; see `readers.load`."""

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


def table(card: Card, request: Request) -> Table:
    """The rows of `request.split` from the hub, a file or a folder (the mini source goes through `twin_rows`).

    Raises:
        UserError: the source or the split is not there, holds no rows, or a row cannot be read.
    """
    split = card.splits[request.split]
    if request.source == "hub":
        found = _from_hub(card, request.split)
    elif (path := Path(request.source)).is_dir():
        found = _from_folder(card, path, request.split)
    elif path.exists():
        found = _from_file(path, split, request.split)
    else:
        raise UserError(
            f"No file or folder {request.source!r} to read {card.name} from.",
            "Give --source mini, --source hub, or the path of the data.",
        )
    if not found.rows:
        raise UserError(f"{found.where} holds no rows for {card.name}.", "Give a source with rows.")
    return _cut(found, split, request.split) if found.whole else found


def twin_table(card: Card, split: str, seed: int, documents: int, arguments: Mapping[str, object]) -> Table:
    """Rows of the miniature twin: `documents` texts of the split that stands for this one, drawn from a seed.

    Raises:
        UserError: the generator refuses its arguments, or they leave no rows.
    """
    assert card.twin is not None, "mini was accepted for a card without a twin"
    try:
        made = twin_function(card.twin.generator)(card.splits[split].twin, seed, documents, **arguments)
    except ValueError as error:
        raise UserError(f"The twin of {card.name} refuses {dict(arguments)} ({error}).", "Change --task-set.") from None
    if not made:
        raise UserError(f"The twin of {card.name} gives no rows with {dict(arguments)}.", "Change --task-set.")
    found = [RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(made)]
    return Table(rows=found, label="mini", where=f"the miniature twin of {card.name}")


def twin_function(generator: str) -> Callable[..., list[Mapping[str, object]]]:
    """The generator named "ttabench.mini.module:function" on a card."""
    module, _, function = generator.partition(":")
    found: Callable[..., list[Mapping[str, object]]] = getattr(import_module(module), function)
    return found


def articles(card: Card, data: Table) -> dict[str, str]:
    """Texts by reference from the companion file beside the questions; see the card's `source.articles`.

    Raises:
        UserError: there is none, or it lacks the columns.
    """
    wanted = card.source.articles
    paths = _matching(data.folder, wanted.files) if wanted is not None and data.folder is not None else []
    if wanted is None or not paths:
        columns = " or ".join(repr(name) for name in card.columns["text"])
        mend = card.source.how
        if wanted is not None:
            mend += f" Put them beside it as {wanted.files[0]}.csv with columns {wanted.key[0]}, {wanted.text[0]}."
        raise UserError(f"{data.where} holds questions without texts (no column {columns}).", mend)
    texts: dict[str, str] = {}
    for row in (row for path in paths for row in rows(path)):
        key = next((row.values[name] for name in wanted.key if name in row.values), None)
        text = next((row.values[name] for name in wanted.text if name in row.values), None)
        if not isinstance(key, str | int) or not isinstance(text, str):
            raise malformed(row.place, f"needs a column {wanted.key[0]!r} and a text column {wanted.text[0]!r}")
        texts[str(key)] = text
    return texts


def _cut(found: Table, split: Split, name: str) -> Table:
    """Keep the published row range of a whole published split."""
    if split.rows is None:
        return found
    first, last = split.rows
    if len(found.rows) != split.of:
        raise UserError(
            f"Split {name!r} is rows {first} to {last} of {split.of}, but {found.where} has {len(found.rows)} rows.",
            "Give the published file, or name a file of your own with --source FILE to use all of it.",
        )
    return replace(found, rows=found.rows[first:last], notes=(*found.notes, f"rows {first} to {last} of {split.of}"))


def _from_file(path: Path, split: Split, name: str) -> Table:
    found = list(rows(path))
    whole = split.rows is not None and len(found) == split.of
    notes: tuple[str, ...] = ()
    if split.rows is not None and not whole and stem(path) not in split.files:
        notes = (f"{path} has {len(found)} rows, not the published {split.of}: all of them serve as split {name!r}",)
    return Table(rows=found, label=f"file:{path}", where=str(path), folder=path.parent, whole=whole, notes=notes)


def _from_folder(card: Card, folder: Path, name: str) -> Table:
    split = card.splits[name]
    label = f"folder:{folder}"
    if any((folder / marker).is_file() for marker in ("dataset_dict.json", "state.json")):
        found, whole = _saved(folder, split, name)
        return Table(rows=found, label=label, where=str(folder), folder=folder, whole=whole)
    hub = card.source.hub
    places = [folder, *(folder / sub for sub in ("data", hub.config if hub and hub.config else "default"))]
    for names, whole in ((split.files, False), (split.whole, True)):
        for place in places:
            paths = _matching(place, names)
            if paths:
                found = [row for path in paths for row in rows(path)]
                where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more shards"
                return Table(rows=found, label=label, where=where, folder=place, whole=whole)
    wanted = ", ".join(split.files + split.whole)
    raise UserError(
        f"No file of split {name!r} of {card.name} in {folder} (looked for {wanted}; {', '.join(READABLE)}, .gz too).",
        "Name the file itself with --source FILE.",
    )


def _matching(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The file, or the complete set of numbered shards, that carries the first of the names present in the folder."""
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.is_file() and readable(path))
    for name in names:
        single = [path for path in files if stem(path) == name]
        if len(single) > 1:
            raise UserError(
                f"{folder} holds {single[0].name} and {single[1].name}: it is unclear which is meant.",
                f"Name one with --source {single[0]}.",
            )
        if single:
            return single
        shards = [path for path in files if (match := _SHARD.match(stem(path))) and match["name"] == name]
        if shards:
            match = _SHARD.match(stem(shards[0]))
            count = int(match["count"]) if match else 0
            if len(shards) != count:
                raise UserError(f"{folder} holds {len(shards)} of {count} shards of {name!r}.", "Download the others.")
            return shards
    return []


def _saved(folder: Path, split: Split, name: str) -> tuple[list[RawRow], bool]:
    """Rows of a `datasets.save_to_disk` folder, and whether they are the whole published split."""
    import datasets
    import pyarrow as arrow

    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException) as error:
        raise UserError(f"Cannot load the saved data set {folder} ({_first_line(error)}).", "Save it again.") from None
    if not isinstance(saved, datasets.DatasetDict):
        return list(_numbered(saved, str(folder))), split.rows is not None and len(saved) == split.of
    for names, whole in ((split.files, False), (split.whole, True)):
        for key in names:
            if key in saved:
                return list(_numbered(saved[key], f"{folder} {key}")), whole
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
        what = f"Split {name!r} of {card.name}" if hub else f"The task {card.name}"
        raise UserError(f"{what} is on no hub.", f"{card.source.how} Then give --source DIR.")
    label = f"hub:{hub.path}@{hub.revision[:8] if hub.revision else 'unpinned'}"
    offline_if_unreachable()
    try:
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        mend = "Give local files with --source DIR" + (", or --source mini." if card.twin else ".")
        raise UserError(f"Cannot load {hub.path} from the hub ({_first_line(error)}).", mend) from None
    return loaded, label


def _numbered(values: Iterator[dict[str, object]], where: str) -> Iterator[RawRow]:
    for number, row in enumerate(values):
        yield RawRow(f"{where} row {number}", row)


def _first_line(error: Exception) -> str:
    return brief(str(error).strip().splitlines()[0], 160) if str(error).strip() else type(error).__name__
