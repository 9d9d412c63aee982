"""The rows of the sub-tasks of a card: what demonstrations are drawn from, and what is asked, from any source.

    parts(card, request, wanted, "test", Words())   ->  [Part(name="boolq", pool=[...], asked=[...]), ...]

A folder holds one folder a sub-task, named as published. Where the asked rows come from the file demonstrations are
drawn from (any split but `test` of real data, or a single file), a row is either shown or asked; otherwise rows of the
pool that are equal to an asked row are left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.checked_file import plain
from ttabench.core.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Scalar, SubTask
from ttabench.readers.choices import HIDDEN_LABEL, Item, parse
from ttabench.readers.formats import stem
from ttabench.readers.generators import generated
from ttabench.readers.layouts import folder_of, narrow, sized
from ttabench.readers.raw import RawRow, malformed
from ttabench.readers.sources import Request, Table, table

POOL, ASKED = "train", "validation"
"""Names of the two lists of rows that a generator of the miniature world makes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-task, its rows in file order."""

    name: str
    pool: tuple[Item, ...]
    """Rows that demonstrations are drawn from."""
    asked: tuple[Item, ...]
    same: bool
    """Both are the same rows: what is shown must not be asked."""
    label: str
    """The source, for records."""
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """Notes on the rows for a record."""

    def draw(self, count: int, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """(`count` demonstrations, the rows to ask); fewer demonstrations are the first of more."""
        enough = len(self.pool) - self.same
        if count > enough:
            raise UserError(
                f"shots={count} demonstrations of {self.name} are more than the {enough} rows to draw them from.",
                f"Give --task-set shots={enough} or fewer, or a source with more rows.",
            )
        demonstrations = tuple(self._order(seed)[:count])
        names = {item.id for item in demonstrations} if self.same else set()
        return demonstrations, tuple(item for item in self.asked if item.id not in names)

    def _order(self, seed: int) -> list[Item]:
        return random.Random(f"demonstrations {self.name} {seed}").sample(self.pool, len(self.pool))

    def others(self, count: int, seed: int, asked: Sequence[Item]) -> tuple[Item, ...]:
        """At most `count` demonstrations behind those of `draw`, none of them like one of these or a row asked."""
        order = self._order(seed)
        taken = {(item.shown, item.options) for item in (*order[:count], *asked)}
        return tuple(item for item in order[count:] if (item.shown, item.options) not in taken)[:count]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A sub-task with its demonstrations drawn."""

    part: Part
    shown: tuple[Item, ...]
    asked: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True)
class Words:
    """How rows are put in words, see `choices.parse`."""

    delimiter: str
    single_blank: bool


def chosen(card: Card, wanted: str) -> list[str]:
    """The names in a comma list, "all" for every sub-task of the card.

    Raises:
        UnknownName: one of them is none; names the closest.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()] if wanted != "all" else list(card.parts)
    for name in names:
        if name not in card.parts:
            raise UnknownName(f"sub-task of {card.name}", name, list(card.parts))
    if not names:
        raise UserError(f"task={wanted!r} names no sub-task of {card.name}.", f"Known: {', '.join(card.parts)}.")
    return list(dict.fromkeys(names))


def twin_part(card: Card, name: str, place: tuple[str, int], arguments: Mapping[str, Scalar], words: Words) -> Part:
    """A sub-task of the miniature world; `place` is its split there and its seed.

    Raises:
        UserError: the generator refuses its arguments, or they leave no rows.
    """
    split, seed = place
    rows = generated(card, dict, task=name, split=split, seed=seed, **arguments)
    tables = [_made(rows[part], f"the {part} rows of the miniature twin of {name}") for part in (POOL, ASKED)]
    return _part(card.parts[name], name, (tables[0], tables[1]), words)


def _made(rows: Sequence[dict[str, object]], where: str) -> Table:
    if not rows:
        raise UserError(f"There are none of {where}.", "Ask for more with --task-set queries=N demonstrations=N.")
    return Table(rows=[RawRow(f"{where}, {i}", row) for i, row in enumerate(rows)], label="mini", where=where)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which sub-tasks, in which size."""

    names: Sequence[str]
    explicit: bool
    """Every name was asked for, so a missing one is an error; else what the folder lacks is left out."""
    size: str = ""
    """Of the training rows, where the card has several; "" for the first there is."""


def parts(card: Card, request: Request, wanted: Wanted, words: Words) -> tuple[list[Part], list[str]]:
    """(sub-tasks from the hub, a folder or a file, notes for the record).

    Raises:
        UserError: nothing there, the wrong split is there, or a row cannot be read.
    """
    base, names = Path(request.source), wanted.names
    if request.source == "hub" or not base.is_dir():
        if request.source != "hub" and len(names) > 1:
            hint = "Give the folder that holds one folder a sub-task, or choose one with --task-set task=NAME."
            raise UserError(f"{request.source!r} is no folder of {', '.join(names)}.", hint)
        sources: dict[str, str | None] = dict.fromkeys(names, request.source)
    else:
        alone = len(card.parts) == 1 or len(names) == 1
        folders = {name: folder_of(card, name, base, alone=alone) for name in names}
        sources = {name: None if folder is None else str(folder) for name, folder in folders.items()}
    missing = [name for name, source in sources.items() if source is None]
    if missing and (wanted.explicit or len(missing) == len(names)):
        looked = ", ".join(folder for name in missing for folder in card.parts[name].folders)
        hint = f"Choose what is there with --task-set task=NAME: {', '.join(card.parts)}."
        raise UserError(f"{base} holds no data of {', '.join(missing)} (looked for the folders {looked}).", hint)
    parts_read = [
        _real(card, replace(request, source=source), name, wanted.size, words)
        for name, source in sources.items()
        if source is not None
    ]
    notes = [card.splits[request.split].note] if card.splits[request.split].note else []
    notes += [f"not in {base}, so left out: {', '.join(missing)}"] if missing else []
    return parts_read, list(dict.fromkeys([*notes, *(note for part in parts_read for note in part.notes)]))


def _real(card: Card, request: Request, name: str, size: str, words: Words) -> Part:
    """A sub-task from its own folder, from a file, or from the hub."""
    part, notes = sized(card, name, request.source, size)
    narrowed = narrow(card, part, request.split)
    one_file = request.source != "hub" and Path(request.source).is_file()
    same = request.split != "test" or one_file
    pool = None if same else _with_labels(part, table(narrowed, replace(request, split=POOL)))
    asked = _with_labels(part, table(narrowed, request))
    notes += (*(pool.notes if pool else ()), *asked.notes)
    if one_file:
        notes += (f"demonstrations and queries are rows of one file, {request.source}, none of them both",)
    return replace(_part(part, name, (pool, asked), words), notes=notes)


def _part(part: SubTask, name: str, tables: tuple[Table | None, Table], words: Words) -> Part:
    """A sub-task from the rows of the pool (None: the asked rows themselves) and the asked rows."""
    pool_table, asked_table = tables
    asked, dropped = parse(part, asked_table, words.delimiter, words.single_blank)
    if pool_table is None:
        rows = tuple(asked)
        return Part(name=name, pool=rows, asked=rows, same=True, label=asked_table.label, dropped=dropped)
    rows_read, unshown = parse(part, pool_table, words.delimiter, words.single_blank)
    taken = {(item.shown, item.options) for item in asked}
    pool = tuple(item for item in rows_read if (item.shown, item.options) not in taken)
    counts = {"demonstration equal to a query": len(rows_read) - len(pool)}
    counts |= {f"demonstration with an {reason}": count for reason, count in unshown.items() if reason != HIDDEN_LABEL}
    return Part(
        name=name,
        pool=pool,
        asked=tuple(asked),
        same=False,
        label=asked_table.label,
        dropped={reason: count for reason, count in {**dropped, **counts}.items() if count},
    )


_BESIDE = {"pair": ("label", ("0", "1", "-1")), "blank": ("answer", ("1", "2"))}
"""Shapes whose labels are published in a file of their own: column, labels."""


def _with_labels(part: SubTask, data: Table) -> Table:
    """PIQA's and WinoGrande's published layout: labels in a file of their own, one a line (valid-labels.lst)."""
    file = Path(data.where)
    beside = file.with_name(f"{stem(file)}-labels.lst")
    column, known = _BESIDE.get(part.shape, ("", ()))
    if not column or column in data.rows[0].values or not beside.is_file():
        return data
    labels = plain(beside).read_text(encoding="utf-8", errors="replace").split()
    if len(labels) != len(data.rows):
        raise UserError(
            f"{beside} has {len(labels)} labels for {len(data.rows)} rows of {file.name}.", "Get both anew."
        )
    for number, label in enumerate(labels, start=1):
        if label not in known:
            raise malformed(f"{beside} line {number}", f"label {label[:20]!r} is neither {known[0]} nor {known[1]}")
    rows = [RawRow(raw.place, {**raw.values, column: int(x)}) for raw, x in zip(data.rows, labels, strict=True)]
    return replace(data, rows=rows)
