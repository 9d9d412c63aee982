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
from typing import cast

from ttabench.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Scalar, Source, SubTask
from ttabench.readers.choices import Item, parse
from ttabench.readers.formats import RawRow, malformed, stem
from ttabench.readers.sources import Request, Table, table, twin_function

POOL, ASKED = "train", "validation"
"""Names of the two lists of rows that a generator of the miniature world makes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-task, its rows in file order."""

    name: str
    pool: tuple[Item, ...]
    """What demonstrations are drawn from."""
    asked: tuple[Item, ...]
    same: bool
    """Both are the same rows: what is shown must not be asked."""
    label: str
    """The source, for records."""
    dropped: Mapping[str, int]

    def draw(self, count: int, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """(`count` demonstrations, the rows to ask); fewer demonstrations are the first of more.

        Raises:
            UserError: the pool is smaller.
        """
        enough = len(self.pool) - self.same
        if count > enough:
            raise UserError(
                f"shots={count} demonstrations of {self.name} are more than the {enough} rows to draw them from.",
                f"Give --task-set shots={enough} or fewer, or a source with more rows.",
            )
        order = random.Random(f"demonstrations {self.name} {seed}").sample(self.pool, len(self.pool))
        shown = tuple(order[:count])
        names = {item.id for item in shown} if self.same else set()
        return shown, tuple(item for item in self.asked if item.id not in names)


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
    assert card.twin is not None, "mini was accepted for a card without a twin"
    split, seed = place
    make = twin_function(card.twin.generator)
    try:
        rows = cast("dict[str, list[dict[str, object]]]", make(task=name, split=split, seed=seed, **arguments))
    except ValueError as error:
        raise UserError(f"The twin of {card.name} refuses {dict(arguments)} ({error}).", "Change --task-set.") from None
    tables = [_made(rows[part], f"the {part} rows of the miniature twin of {name}") for part in (POOL, ASKED)]
    return _part(card.parts[name], name, (tables[0], tables[1]), words)


def _made(rows: Sequence[dict[str, object]], where: str) -> Table:
    if not rows:
        raise UserError(f"There are none of {where}.", "Ask for more with --task-set queries=N demonstrations=N.")
    return Table(rows=[RawRow(f"{where}, {i}", row) for i, row in enumerate(rows)], label="mini", where=where)


def parts(card: Card, request: Request, names: Sequence[str], explicit: bool, words: Words) -> tuple[list[Part], str]:
    """(sub-tasks from the hub, a folder or a file, what was left out as a sentence).

    Args:
        explicit: every name was asked for, so a missing one is an error; else what the folder lacks is left out.

    Raises:
        UserError: nothing there, or a row cannot be read.
    """
    base = Path(request.source)
    if request.source == "hub" or not base.is_dir():
        if request.source != "hub" and len(names) > 1:
            mend = "Give the folder that holds one folder a sub-task, or choose one with --task-set task=NAME."
            raise UserError(f"{request.source!r} is no folder of {', '.join(names)}.", mend)
        return [_real(card, request, name, request.source, words) for name in names], ""
    folders = {name: _folder(base, card.parts[name], alone=len(card.parts) == 1 or len(names) == 1) for name in names}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing and (explicit or len(missing) == len(names)):
        wanted = ", ".join(folder for name in missing for folder in card.parts[name].folders)
        mend = f"Choose what is there with --task-set task=NAME: {', '.join(card.parts)}."
        raise UserError(f"{base} holds no data of {', '.join(missing)} (looked for the folders {wanted}).", mend)
    found = [_real(card, request, name, str(folder), words) for name, folder in folders.items() if folder is not None]
    return found, f"not in {base}, so left out: {', '.join(missing)}" if missing else ""


def _folder(base: Path, part: SubTask, alone: bool) -> Path | None:
    inside = next((base / name for name in part.folders if (base / name).is_dir()), None)
    return inside or (base if alone else None)


def _real(card: Card, request: Request, name: str, source: str, words: Words) -> Part:
    part = card.parts[name]
    asked = part.test if request.split == "test" else part.train
    narrowed = card.model_copy(
        update={
            "source": Source(hub=part.hub, how=card.source.how),
            "splits": {POOL: part.train, "test": asked},
        }
    )
    tables = [table(narrowed, Request(source=source, split=split, options={})) for split in (POOL, "test")]
    pool, rows = (_with_labels(part, each) for each in tables)
    same = request.split != "test" or Path(source).is_file()
    return _part(part, name, (None if same else pool, rows), words)


def _part(part: SubTask, name: str, tables: tuple[Table | None, Table], words: Words) -> Part:
    """A sub-task from the rows of the pool (None: the asked rows themselves) and the asked rows."""
    pool_table, asked_table = tables
    asked, hidden = parse(part, asked_table, words.delimiter, words.single_blank)
    if pool_table is None:
        dropped = {"label hidden": hidden} if hidden else {}
        rows = tuple(asked)
        return Part(name=name, pool=rows, asked=rows, same=True, label=asked_table.label, dropped=dropped)
    found, _ = parse(part, pool_table, words.delimiter, words.single_blank)
    taken = {(item.shown, item.options) for item in asked}
    pool = tuple(item for item in found if (item.shown, item.options) not in taken)
    counts = {"label hidden": hidden, "demonstration equal to a query": len(found) - len(pool)}
    return Part(
        name=name,
        pool=pool,
        asked=tuple(asked),
        same=False,
        label=asked_table.label,
        dropped={reason: count for reason, count in counts.items() if count},
    )


def _with_labels(part: SubTask, data: Table) -> Table:
    """PIQA's published layout: the labels stand in a file of their own, one a line (valid-labels.lst)."""
    file = Path(data.where)
    beside = file.with_name(f"{stem(file)}-labels.lst")
    if part.shape != "pair" or "label" in data.rows[0].values or not beside.is_file():
        return data
    labels = beside.read_text(encoding="utf-8", errors="replace").split()
    if len(labels) != len(data.rows):
        raise UserError(
            f"{beside} has {len(labels)} labels for {len(data.rows)} rows of {file.name}.", "Get both anew."
        )
    for number, label in enumerate(labels, start=1):
        if label not in ("0", "1", "-1"):
            raise malformed(f"{beside} line {number}", f"label {label[:20]!r} is neither 0 nor 1")
    rows = [RawRow(raw.place, {**raw.values, "label": int(x)}) for raw, x in zip(data.rows, labels, strict=True)]
    return replace(data, rows=rows)
