"""Where rows come from: the miniature world, the hub, or the user's file or folder in any published layout.

A folder holds one file a split (names on the card), numbered parquet shards as the hub stores them, or what a published
archive unpacks to. A split that a paper cut out of a published split by row numbers is cut only where the number of
rows is the published one.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, Split
from ttabench.readers.formats import READABLE, Formats, RawRow, brief, parsing, reasons, rows, stem

T = TypeVar("T")
GENERATED = "generated"
"""The source of rows that a reader makes and that are not of the miniature world."""
MOST_ROWS, MOST_TOKENS = 10**6, 2**26
"""What a twin makes at most: rows, or whatever its arguments count, multiplied; and tokens of running text."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")


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

    rows: list[RawRow] = field(default_factory=list)
    label: str = "mini"
    """Stands in records and tables as the source."""
    where: str = ""
    """Names the file, folder or data set in error messages."""
    folder: Path | None = None
    """Where companion files may lie."""
    whole: bool = False
    """These are the rows of a published split, of which the wanted split may be a range."""
    notes: tuple[str, ...] = ()
    unused: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be used by reason, once they were looked at."""


def usable(data: Table, row_of: Callable[[RawRow], T | str], *, some: bool = True) -> list[T]:
    """What rows hold, in file order; of a row that cannot be used `row_of` gives the reason, counted in `unused`.

    `some`: there has to be a row that can be used.
    """
    held: list[T] = []
    for number, raw in enumerate(data.rows):
        with parsing(raw.place):
            row = row_of(raw._replace(number=number))
        if isinstance(row, str):
            data.unused[row] += 1
        else:
            held.append(row)
    if some and not held:
        fault = f"None of the {len(data.rows)} rows of {data.where} is usable ({reasons(data.unused)})."
        raise UserError(fault, "Give others.")
    return held


def usual_source(card: Card | None, *, nano: bool) -> str:
    """Where the rows of a task come from under a base model, nano or another, where nobody says."""
    return "mini" if nano else GENERATED if card is not None and card.reader == "ruler" else "hub"


def table(card: Card, request: Request, more: Formats | None = None) -> Table:
    """The rows of `request.split` from the hub, a file or a folder (the mini source goes through `twin_table`).

    `more`: other formats by suffix, which come before the usual ones.
    """
    name, path = request.split, Path(request.source)
    split, formats = card.splits[name], {**(more or {}), **READABLE}
    if request.source == "hub":
        loaded, label = hub_rows(card, name)
        held = [RawRow(f"{label} row {number}", dict(row)) for number, row in enumerate(loaded)]
        data = Table(rows=held, label=label, where=label, whole=True)
    elif path.is_dir():
        data = _from_folder(card, path, name, formats)
    elif path.exists():
        data = _from_file(card, path, name, formats)
    else:
        raise UserError(
            f"No file or folder {request.source!r} to read {card.name} from.",
            "Check the path; --source takes mini, hub, or the path of the data.",
        )
    if not data.rows:
        raise UserError(f"{data.where} holds no rows for {card.name}.", "Give a source with rows.")
    if not data.whole or split.rows is None:
        return data
    first, last = split.rows
    if len(data.rows) != split.of:
        raise UserError(
            f"Split {name!r} is rows {first} to {last} of {split.of}, but {data.where} has {len(data.rows)} rows.",
            "Give the published file, or name a file of your own with --source FILE to use all of it.",
        )
    return replace(data, rows=data.rows[first:last], notes=(*data.notes, f"rows {first} to {last} of {split.of}"))


def _from_file(card: Card, path: Path, wanted: str, formats: Formats) -> Table:
    split, held = card.splits[wanted], list(rows(path, formats))
    whole = split.rows is not None and len(held) == split.of
    notes = () if whole else serving(card, wanted, _SHARD.sub("", stem(path, formats)), path)
    return Table(rows=held, label=f"file:{path}", where=str(path), folder=path.parent, whole=whole, notes=notes)


def _from_folder(card: Card, folder: Path, name: str, formats: Formats) -> Table:
    split = card.splits[name]
    files, whole = find(split, places(card, folder), formats)
    if not files:
        wanted = ", ".join(split.files + split.whole) or "one file of any name"
        fault = f"No file of split {name!r} of {card.name} in {folder} (looked for {wanted}"
        hint = "Give the folder with the files of all splits." if card.parts else "Name the file with --source FILE."
        raise UserError(f"{fault}; {', '.join(formats)}, .gz too).", f"{hint} {card.source.how}".strip())
    held = [row for path in files for row in rows(path, formats)]
    return Table(rows=held, label=f"folder:{folder}", where=str(files[0]), folder=files[0].parent, whole=whole)


def hub_rows(card: Card, name: str) -> tuple[Any, str]:
    """The data set of a split on the hub, not in memory, and the label of the source."""
    import datasets

    hub, split = card.source.hub, card.splits[name].hub
    if hub is None or split is None:
        fault = f"Split {name!r} of the task {card.name} is on no hub."
        raise UserError(fault, f"{card.source.how} Then give --source DIR.")
    try:
        loaded = datasets.load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
    except Exception as error:
        hint = "Give local files with --source DIR" + (", or --source mini." if card.twin else ".")
        reason = brief((str(error).strip() or type(error).__name__).splitlines()[0], 160)
        raise UserError(f"Cannot load {hub.path} from the hub ({reason}).", hint) from None
    return loaded, f"hub:{hub.path}@{hub.commit[:8] or 'unpinned'}"


# --- where the files of a split lie in what people unpack: OpenBookQA-V1-Sep2018/Data/Main/train.jsonl ---------------


def tops(base: Path, names: Sequence[str]) -> list[Path]:
    """The folder, and the top folders of the published archive that stand in it."""
    return [base, *(base / name for name in names if (base / name).is_dir())]


def places(card: Card, folder: Path) -> list[Path]:
    """Where files may stand: the folder, an archive's top folder in it, and the hub's folders `data` and config."""
    hub = card.source.hub
    inner = ("data", hub.config if hub and hub.config else "default")
    return [place for top in tops(folder, card.source.folders) for place in (top, *(top / name for name in inner))]


def find(split: Split, folders: Iterable[Path], formats: Formats = READABLE) -> tuple[list[Path], bool]:
    """(the file of a split, or every shard of it, in the first of the folders that has them, whether it is a whole
    published split, whose names come last); no files where there are none.
    """
    folders = list(folders)
    for names, whole in ((split.files, False), (split.whole, True)):
        for place in (folder / name for folder in folders for name in names):
            if files := _named(place, formats):
                return files, whole
    return [], False


def _named(place: Path, formats: Formats) -> list[Path]:
    """The file of this name, in the first of the formats and rather not packed, or its shards."""
    for ending in (suffix + packed for suffix in formats for packed in ("", ".gz")):
        if (file := place.with_name(place.name + ending)).is_file():
            return [file]
    shards = sorted(place.parent.glob(f"{place.name}-?????-of-?????*.parquet"))
    if shards and len(shards) != (count := int(shards[0].name.partition("-of-")[2][:5])):
        raise UserError(f"{place.parent} holds {len(shards)} of {count} shards of {place.name!r}.", "Get the others.")
    return shards


def serving(card: Card, wanted: str, name: str, where: Path) -> tuple[str, ...]:
    """What a record must say where a source called `name` (of a file, or a folder of books) serves as the split
    `wanted` that is called otherwise; a card that names no files takes any.
    """
    split, every = card.splits[wanted], card.splits.values()
    names = [Path(known).name for known in (*split.files, *(split.whole if split.rows is None else ()))]
    if name.casefold() in map(str.casefold, names) or not any(one.files or one.whole for one in every):
        return ()
    return (f"{where} serves as split {wanted!r} of {card.name}, all of it (known by name: {', '.join(names)})",)


# --- miniature twins -------------------------------------------------------------------------------------------------


def twin_table(card: Card, split: str, seed: int, documents: int | None, arguments: Mapping[str, object]) -> Table:
    """Rows of the miniature twin of this split, drawn from a seed: of so many texts, where its generator takes that."""
    place = (card.splits[split].twin, seed, *(() if documents is None else (documents,)))
    return twin_rows(card, generated(card, *place, **arguments))


def long_twin(card: Card, split: str, seed: int, books: int, tokens: int) -> Table:
    """Books of the miniature world of at least about so many tokens."""
    return twin_table(card, split, seed, books, {"tokens": tokens * 9 // 8 + 64})


def twin_rows(card: Card, made: Sequence[Mapping[str, object]]) -> Table:
    """Rows that a generator made, as a table."""
    if not made:
        raise UserError(f"The twin of {card.name} gives no rows.", "Change --task-set.")
    held = [RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(made)]
    return Table(rows=held, where=f"the miniature twin of {card.name}")


def generator_of(card: Card) -> Callable[..., Any]:
    """The function that the card names as "ttabench.mini.module:function"."""
    assert card.twin is not None, "mini was accepted for a card without a twin"
    module, _, function = card.twin.generator.partition(":")
    try:
        generator: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError):
        fault = f"The task card {card.name}: there is no twin.generator {card.twin.generator!r}."
        raise UserError(fault, "Mend that field.") from None
    return generator


def arguments_of(card: Card, source: str) -> type[BaseModel]:
    """Arguments of the card's generator beyond its place, with types and defaults; none but of `mini`."""
    fields: dict[str, Any] = {}
    if source == "mini" and card.twin is not None:
        function = generator_of(card)
        hints = get_type_hints(function)
        for name, one in inspect.signature(function).parameters.items():
            if name not in ("split", "seed", "documents"):
                fields[name] = hints.get(name, str), None if one.default is one.empty else one.default
    return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)


def generated(card: Card, *place: object, **arguments: object) -> Any:
    """What the card's generator makes: rows, or rows by name."""
    function = generator_of(card)
    try:
        given = inspect.signature(function).bind(*place, **arguments).arguments
        counts = {key: n for key, n in given.items() if key != "seed" and isinstance(n, int) and n > 0}
        made = math.prod(n for key, n in counts.items() if key != "tokens")
        if made > MOST_ROWS or made * counts.get("tokens", 1) > MOST_TOKENS:
            asked = ", ".join(f"{key}={brief(n, 20)}" for key, n in counts.items())
            raise UserError(f"The twin of {card.name} would make too much with {asked}.", "Give smaller --task-set.")
        return function(*place, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"The twin of {card.name} refuses that ({error}).", "Change --task-set.") from None
