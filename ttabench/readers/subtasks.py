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

from ttabench.core.checked_file import read_text
from ttabench.core.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Scalar, SubTask
from ttabench.readers.choices import HIDDEN_LABEL, Item, parse
from ttabench.readers.formats import RawRow, malformed, stem
from ttabench.readers.layouts import folder_of, narrow, sized
from ttabench.readers.sources import Request, Table, generated, table, twin_rows

POOL, ASKED = "train", "validation"
"""Names of the two lists of rows that a generator of the miniature world makes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-task, its rows in file order."""

    name: str
    pool: Sequence[Item]
    """Rows that demonstrations are drawn from."""
    asked: Sequence[Item]
    same: bool
    """Both are the same rows: what is shown must not be asked."""
    label: str
    """The source, for records."""
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """Notes on the rows for a record."""

    def draw(self, count: int, seed: int) -> tuple[Sequence[Item], Sequence[Item]]:
        """(`count` demonstrations, the rows to ask); fewer demonstrations are the first of more."""
        enough = len(self.pool) - self.same
        if count > enough:
            raise UserError(
                f"shots={count} demonstrations of {self.name} are more than the {enough} rows to draw them from.",
                f"Give --task-set shots={enough} or fewer, or a source with more rows.",
            )
        demonstrations = self._order(seed)[:count]
        names = {item.id for item in demonstrations} if self.same else set()
        return demonstrations, [item for item in self.asked if item.id not in names]

    def _order(self, seed: int) -> list[Item]:
        return random.Random(f"demonstrations {self.name} {seed}").sample(self.pool, len(self.pool))

    def others(self, count: int, seed: int, asked: Sequence[Item]) -> list[Item]:
        """At most `count` demonstrations behind those of `draw`, none of them like one of these or a row asked."""
        order = self._order(seed)
        taken = {item.told for item in (*order[:count], *asked)}
        return [item for item in order[count:] if item.told not in taken][:count]


@dataclass(frozen=True, kw_only=True)
class Words:
    """How rows are put in words, see `choices.parse`."""

    delimiter: str
    single_blank: bool


def chosen(card: Card, wanted: str) -> list[str]:
    """The names in a comma list, "all" for every sub-task of the card."""
    names = [name.strip() for name in wanted.split(",") if name.strip()] if wanted != "all" else list(card.parts)
    if unknown := next((name for name in names or [wanted] if name not in card.parts), None):
        raise UnknownName(f"sub-task of {card.name}", unknown, list(card.parts))
    return list(dict.fromkeys(names))


def twin_part(card: Card, name: str, split: str, seed: int, arguments: Mapping[str, Scalar], words: Words) -> Part:
    """A sub-task of the miniature world that stands for a split."""
    made = generated(card, dict, task=name, split=card.splits[split].twin, seed=seed, **arguments)
    pool, asked = (twin_rows(card, made[part], arguments) for part in (POOL, ASKED))
    return _part(card.parts[name], name, pool, asked, words)


def parts(
    card: Card, request: Request, names: Sequence[str], words: Words, *, explicit: bool, size: str
) -> tuple[list[Part], list[str]]:
    """(sub-tasks from the hub, a folder or a file, notes for the record). `explicit`: every name was asked for, so a
    missing one is an error; else what the folder lacks is left out. `size`: see `layouts.sized`.
    """
    base = Path(request.source)
    if request.source == "hub" or not base.is_dir():
        if request.source != "hub" and len(names) > 1:
            hint = "Give the folder that holds one folder a sub-task, or choose one with --task-set task=NAME."
            raise UserError(f"{request.source!r} is no folder of {', '.join(names)}.", hint)
        sources = dict.fromkeys(names, request.source)
    else:
        alone = len(card.parts) == 1 or len(names) == 1
        folders = {name: folder_of(card, name, base, alone=alone) for name in names}
        sources = {name: str(folder) for name, folder in folders.items() if folder is not None}
    missing = [name for name in names if name not in sources]
    if missing and (explicit or not sources):
        looked = ", ".join(folder for name in missing for folder in card.parts[name].folders)
        hint = f"Choose what is there with --task-set task=NAME: {', '.join(card.parts)}."
        raise UserError(f"{base} holds no data of {', '.join(missing)} (looked for the folders {looked}).", hint)
    held = [_real(card, replace(request, source=source), name, size, words) for name, source in sources.items()]
    notes = [card.splits[request.split].note] if card.splits[request.split].note else []
    notes += [f"not in {base}, so left out: {', '.join(missing)}"] if missing else []
    return held, list(dict.fromkeys([*notes, *(note for part in held for note in part.notes)]))


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
    return replace(_part(part, name, pool, asked, words), notes=notes)


def _part(part: SubTask, name: str, pool: Table | None, asked: Table, words: Words) -> Part:
    """A sub-task from the rows of the pool (None: the asked rows themselves) and the asked rows."""
    items, dropped = parse(part, asked, words.delimiter, words.single_blank)
    if pool is None:
        return Part(name=name, pool=items, asked=items, same=True, label=asked.label, dropped=dropped)
    held, unshown = parse(part, pool, words.delimiter, words.single_blank)
    taken = {item.told for item in items}
    kept = [item for item in held if item.told not in taken]
    if len(kept) < len(held):
        dropped["demonstration equal to a query"] = len(held) - len(kept)
    dropped |= {f"demonstration with an {reason}": count for reason, count in unshown.items() if reason != HIDDEN_LABEL}
    return Part(name=name, pool=kept, asked=items, same=False, label=asked.label, dropped=dropped)


_BESIDE = {"pair": ("label", ("0", "1", "-1")), "blank": ("answer", ("1", "2"))}
"""Shapes whose labels are published in a file of their own: column, labels."""


def _with_labels(part: SubTask, data: Table) -> Table:
    """PIQA's and WinoGrande's published layout: labels in a file of their own, one a line (valid-labels.lst)."""
    file = Path(data.where)
    beside = file.with_name(f"{stem(file)}-labels.lst")
    column, known = _BESIDE.get(part.shape, ("", ()))
    if not column or column in data.rows[0].values or not beside.is_file():
        return data
    labels = read_text(beside).split()
    if len(labels) != len(data.rows):
        fault = f"{beside} has {len(labels)} labels for {len(data.rows)} rows of {file.name}."
        raise UserError(fault, "Get both anew.")
    for number, label in enumerate(labels, start=1):
        if label not in known:
            raise malformed(f"{beside} line {number}", f"label {label[:20]!r} is neither {known[0]} nor {known[1]}")
    rows = [RawRow(raw.place, {**raw.values, column: int(x)}) for raw, x in zip(data.rows, labels, strict=True)]
    return replace(data, rows=rows)
