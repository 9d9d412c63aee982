"""Where rows come from: the miniature world, the hub, or the user's file or folder in any published layout.

A folder holds one file a split (names on the card), numbered parquet shards as the hub stores them, or what
`datasets.save_to_disk` wrote. A split that a paper cut out of a published split by row numbers is cut only where the
number of rows is the published one.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ttabench.core.checked_file import reading
from ttabench.core.environment import offline_if_unreachable
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief, reasons
from ttabench.readers.formats import READABLE, RawRow, parsing, rows
from ttabench.readers.layouts import find, places, published_name, serving

T = TypeVar("T")
GENERATED = "generated"
"""The source of rows that a reader makes and that are not of the miniature world."""
MOST_ROWS, MOST_TOKENS = 10**6, 2**26
"""What a twin makes at most: rows, or whatever its arguments count, multiplied; and tokens of running text."""


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


def usable(data: Table, row_of: Callable[[RawRow], T | str]) -> tuple[list[T], Counter[str]]:
    """(what rows hold, in file order, dropped rows by reason); of a row that cannot be used `row_of` gives that."""
    held: list[T] = []
    dropped: Counter[str] = Counter()
    for raw in data.rows:
        with parsing(raw.place):
            row = row_of(raw)
        if isinstance(row, str):
            dropped[row] += 1
        else:
            held.append(row)
    if not held:
        fault = f"None of the {len(data.rows)} rows of {data.where} is usable ({reasons(dropped)})."
        raise UserError(fault, "Give others.")
    return held, dropped


def usual_source(card: Card | None, *, nano: bool) -> str:
    """Where the rows of a task come from under a base model, nano or another, where nobody says."""
    return "mini" if nano else GENERATED if card is not None and card.reader == "ruler" else "hub"


def table(card: Card, request: Request) -> Table:
    """The rows of `request.split` from the hub, a file or a folder (the mini source goes through `twin_table`)."""
    name, path = request.split, Path(request.source)
    if request.source == "hub":
        loaded, label = hub_rows(card, name)
        held = Table(rows=list(_numbered(loaded, label)), label=label, where=label, whole=True)
    elif path.is_dir():
        saved = any((path / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
        held = _saved(card, path, name) if saved else _from_folder(card, path, name)
    elif path.exists():
        held = _serving(card, name, published_name(path), list(rows(path)), path)
    else:
        raise UserError(
            f"No file or folder {request.source!r} to read {card.name} from.",
            "Check the path; --source takes mini, hub, or the path of the data.",
        )
    if not held.rows:
        raise UserError(f"{held.where} holds no rows for {card.name}.", "Give a source with rows.")
    split = card.splits[name]
    if not held.whole or (split.years is None and split.rows is None):
        return held
    if split.years is not None:
        return replace(held, years=split.years)
    assert split.rows is not None
    first, last = split.rows
    if len(held.rows) != split.of:
        raise UserError(
            f"Split {name!r} is rows {first} to {last} of {split.of}, but {held.where} has {len(held.rows)} rows.",
            "Give the published file, or name a file of your own with --source FILE to use all of it.",
        )
    return replace(held, rows=held.rows[first:last], notes=(*held.notes, f"rows {first} to {last} of {split.of}"))


def text_file(card: Card, split: str, source: Path, folders: Iterable[Path]) -> Path | None:
    """The file of a split that is no table: the source itself, or the first of its names on the card in a folder."""
    if source.is_file():
        return source if source.name.removesuffix(".gz").endswith(".txt") else None
    names = [f"{name}.txt{packed}" for name in card.splits[split].files for packed in ("", ".gz")]
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def table_of_text(card: Card, request: Request, file: Path, held: Iterable[RawRow]) -> Table:
    """Rows of such a file."""
    held, notes = list(held), serving(card, request.split, file.name.removesuffix(".gz").removesuffix(".txt"), file)
    if not held:
        raise UserError(f"{file} holds no rows for {card.name}.", "Give a source with rows.")
    source = Path(request.source)
    label = f"{'file' if source.is_file() else 'folder'}:{source}"
    return Table(rows=held, label=label, where=str(file), notes=notes)


def _serving(card: Card, wanted: str, name: str, held: list[RawRow], path: Path) -> Table:
    """Rows of one file, or of one saved split, called `name`."""
    split, notes = card.splits[wanted], serving(card, wanted, name, path)
    whole = (split.rows is not None and len(held) == split.of) or (split.years is not None and name in split.whole)
    if split.rows is not None and not whole and name not in split.files:
        notes = (f"{path} has {len(held)} rows, not the published {split.of}: all of them serve as split {wanted!r}",)
    label, folder = (f"folder:{path}", path) if path.is_dir() else (f"file:{path}", path.parent)
    return Table(rows=held, label=label, where=str(path), folder=folder, whole=whole, notes=() if whole else notes)


def _from_folder(card: Card, folder: Path, name: str) -> Table:
    split = card.splits[name]
    files = find(split, places(card, folder))
    if files is None:
        wanted = ", ".join(split.files + split.whole) or "one file of any name"
        fault = f"No file of split {name!r} of {card.name} in {folder} (looked for {wanted}"
        hint = "Give the folder with the files of all splits." if card.parts else "Name the file with --source FILE."
        raise UserError(f"{fault}; {', '.join(READABLE)}, .gz too).", f"{hint} {card.source.how}".strip())
    more = f" and {len(files.paths) - 1} more shards" if len(files.paths) > 1 else ""
    return Table(
        rows=[row for path in files.paths for row in rows(path)],
        label=f"folder:{folder}",
        where=f"{files.paths[0]}{more}",
        folder=files.paths[0].parent,
        whole=files.whole,
    )


def _saved(card: Card, folder: Path, name: str) -> Table:
    """Rows of a `datasets.save_to_disk` folder: of the split by its name, or of the one split that was saved."""
    import datasets

    with reading(folder, "Save it again.", most=None):
        saved = datasets.load_from_disk(str(folder))
    if not isinstance(saved, datasets.DatasetDict):
        return _serving(card, name, str(saved.split or ""), list(_numbered(saved, str(folder))), folder)
    split = card.splits[name]
    known = next((key for key in (*split.files, *split.whole) if key in saved), None)
    if known is None:
        raise UserError(
            f"The saved data set {folder} has no split {name!r}: it has {', '.join(map(brief, saved))}.",
            f"Save one of {', '.join(split.files + split.whole)}.",
        )
    held = list(_numbered(saved[known], f"{folder} {known}"))
    whole = known not in split.files
    return Table(rows=held, label=f"folder:{folder}", where=str(folder), folder=folder, whole=whole)


def hub_rows(card: Card, name: str) -> tuple[Any, str]:
    """The data set of a split on the hub, not in memory, and the label of the source."""
    import datasets

    hub, split = card.source.hub, card.splits[name].hub
    if hub is None or split is None:
        fault = f"Split {name!r} of {card.name}" if hub else f"The task {card.name}"
        raise UserError(f"{fault} is on no hub.", f"{card.source.how} Then give --source DIR.")
    offline_if_unreachable()
    try:
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        hint = "Give local files with --source DIR" + (", or --source mini." if card.twin else ".")
        reason = brief((str(error).strip() or type(error).__name__).splitlines()[0], 160)
        raise UserError(f"Cannot load {hub.path} from the hub ({reason}).", hint) from None
    return loaded, f"hub:{hub.path}@{hub.commit[:8] or 'unpinned'}"


def _numbered(values: Iterator[dict[str, object]], where: str) -> Iterator[RawRow]:
    with reading(where, most=None) as at:
        for at.row, row in enumerate(values):
            yield RawRow(f"{where} row {at.row}", row)


# --- miniature twins -------------------------------------------------------------------------------------------------


def twin_table(card: Card, split: str, seed: int, documents: int | None, arguments: Mapping[str, object]) -> Table:
    """Rows of the miniature twin of this split, drawn from a seed: of so many texts, where its generator takes that."""
    place = (card.splits[split].twin, seed, *(() if documents is None else (documents,)))
    return twin_rows(card, generated(card, list, *place, **arguments), arguments)


def twin_rows(card: Card, made: Sequence[Mapping[str, object]], arguments: Mapping[str, object]) -> Table:
    """Rows that a generator made, as a table."""
    if not made:
        raise UserError(f"The twin of {card.name} gives no rows with {dict(arguments)}.", "Change --task-set.")
    held = [RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(made)]
    return Table(rows=held, label="mini", where=f"the miniature twin of {card.name}")


def generator_of(card: Card) -> Callable[..., Any]:
    """The function that the card names as "ttabench.mini.module:function"."""
    assert card.twin is not None, "mini was accepted for a card without a twin"
    module, _, function = card.twin.generator.partition(":")
    try:
        generator: Callable[..., Any] = getattr(import_module(module), function)
        names = inspect.signature(generator).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _fault(card, "there is no such function") from None
    if not {"split", "seed"} <= names.keys():
        raise _fault(card, "it makes no rows from a split and a seed")
    return generator


def arguments_of(card: Card) -> dict[str, Any]:
    """Arguments of the card's generator beyond split, seed and documents, with their types."""
    function = generator_of(card)
    hints = get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name not in ("split", "seed", "documents")]
    return {name: hints.get(name, str) for name in names}


def generated(card: Card, kind: type[T], *place: object, **arguments: object) -> T:
    """What the card's generator makes: `kind` is list (rows) or dict (rows by name)."""
    function = generator_of(card)
    try:
        bound = inspect.signature(function).bind(*place, **arguments)
    except TypeError as error:
        raise _fault(card, f"it does not fit this card's reader ({error})") from None
    counts = {key: n for key, n in bound.arguments.items() if key != "seed" and isinstance(n, int) and n > 0}
    made = math.prod(n for key, n in counts.items() if key != "tokens")
    if made > MOST_ROWS or made * counts.get("tokens", 1) > MOST_TOKENS:
        asked = ", ".join(f"{key}={brief(n, 20)}" for key, n in counts.items())
        raise UserError(f"The twin of {card.name} would make too much with {asked}.", "Ask for less with --task-set.")
    try:
        content = function(*place, **arguments)
    except ValueError as error:
        given = {key: value for key, value in arguments.items() if key not in ("task", "split", "seed")}
        raise UserError(f"The twin of {card.name} refuses {given} ({error}).", "Change --task-set.") from None
    if not isinstance(content, kind):
        raise _fault(card, "it makes rows for another reader")
    return content


def _fault(card: Card, why: str) -> UserError:
    assert card.twin is not None
    return UserError(f"The task card {card.name}: twin.generator {card.twin.generator!r}: {why}.", "Mend that field.")
