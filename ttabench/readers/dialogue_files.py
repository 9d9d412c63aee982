"""Where dialogues come from: DailyDialog's own files, rows of the hub or of tables, the miniature world.

    ijcnlp_dailydialog/test/dialogues_test.txt     Hey man , you wanna buy some weed ? __eou__ Some what ? __eou__

A line is a dialogue. Rows of tables hold the list of its turns in one cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.dialogue_text import END_OF_TURN, Dialogue, Wording, detokenised, turns_of
from ttabench.readers.faults import brief
from ttabench.readers.generators import generated
from ttabench.readers.layouts import places, serving
from ttabench.readers.raw import RawRow, malformed, opened, proper
from ttabench.readers.sources import Request, table

LEAST = 3
"""Turns: one that is read, one that is answered, and the answer."""
EMPTY = "an empty turn"


@dataclass(frozen=True, kw_only=True)
class Dialogues:
    """The dialogues of a split."""

    kept: tuple[Dialogue, ...]
    """Those with enough turns, all of which say something."""
    label: str
    """Stands in records and tables as the source."""
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """Notes on the split for a record."""


def dialogues(card: Card, request: Request, wording: Wording = "plain") -> Dialogues:
    """The dialogues of `request.split` from the hub, a file or a folder.

    Raises:
        UserError: the source or the split is not there, a row cannot be read, two have one id, or none is long enough.
    """
    text = _text_file(card, Path(request.source), request.split) if request.source != "hub" else None
    if text is not None:
        kind = "file" if text == Path(request.source) else "folder"
        notes = serving(card, request.split, _name(text), text)
        return _looked_at(card, list(_lines(text)), f"{kind}:{request.source}", notes, wording)
    rows = table(card, request)
    return _looked_at(card, rows.rows, rows.label, rows.notes, wording)


def twin_dialogues(card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]) -> Dialogues:
    """Those of the miniature world, which have no blanks of tokenising.

    Raises:
        UserError: the generator refuses its arguments, or they leave no dialogue that is long enough.
    """
    made = generated(card, list, card.splits[split].twin, seed, **arguments)
    rows = [RawRow(f"mini row {number}", dict(values)) for number, values in enumerate(made)]
    return _looked_at(card, rows, "mini", ())


def _looked_at(
    card: Card, rows: Sequence[RawRow], label: str, notes: tuple[str, ...], wording: Wording = "plain"
) -> Dialogues:
    kept: list[Dialogue] = []
    dropped: Counter[str] = Counter()
    seen: dict[str, str] = {}
    for number, row in enumerate(rows):
        dialogue = _dialogue(card, row, number, wording)
        if dialogue.id in seen:
            raise malformed(row.place, f"the id {brief(dialogue.id)} is that of {seen[dialogue.id]}, too")
        seen[dialogue.id] = row.place
        if len(dialogue.turns) < LEAST:
            dropped[f"fewer than {LEAST} turns"] += 1
        elif not all(dialogue.turns):
            dropped[EMPTY] += 1
        else:
            kept.append(dialogue)
    if not kept:
        reasons = ", ".join(f"{count} with {reason}" for reason, count in dropped.items()) or "no rows"
        hint = "Give a source with longer dialogues." if label != "mini" else "Ask for more with --task-set rows=N."
        raise UserError(f"{label.partition(':')[2] or label} holds no dialogue for {card.name}: {reasons}.", hint)
    return Dialogues(kept=tuple(kept), label=label, dropped=dict(dropped), notes=notes)


def _dialogue(card: Card, row: RawRow, number: int, wording: Wording) -> Dialogue:
    column = next((name for name in card.columns["turns"] if name in row.values), None)
    if column is None:
        have = brief(", ".join(map(str, row.values)), 160)
        wanted = " or ".join(map(repr, card.columns["turns"]))
        raise UserError(f"{row.place} lacks the column {wanted}; it has {have}.", "Give the published files.")
    cell = row.values[column]
    if isinstance(cell, str) and END_OF_TURN in cell:
        cell = turns_of(cell)
    if not isinstance(cell, list | tuple) or not all(isinstance(turn, str) for turn in cell):
        raise malformed(row.place, f"the column {column!r} holds {brief(cell)}, no list of turns")
    turns = tuple(detokenised(proper(row.place, "a turn", turn), wording) for turn in cell)
    name = next((row.values[name] for name in card.columns.get("id", ()) if name in row.values), number)
    return Dialogue(id=proper(row.place, "its id", str(name)), turns=turns)


def _text_file(card: Card, source: Path, split: str) -> Path | None:
    """The published file of a split: itself, in a folder, or in the split's folder of the archive."""
    if source.is_file() or not source.is_dir():
        return source if source.name.removesuffix(".gz").endswith(".txt") and source.exists() else None
    names = [f"{name}.txt{packed}" for name in card.splits[split].files for packed in ("", ".gz")]
    folders = [inner for folder in places(card, source) for inner in (folder, folder / split)]
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")


def _lines(path: Path) -> Iterator[RawRow]:
    """A row a line that is not blank.

    Raises:
        UserError: a line holds no turn that ends, or the last one does not end as turns do.
    """
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place, ends = f"{path} line {number}", line.rstrip().endswith(END_OF_TURN)
            if END_OF_TURN not in line:
                raise malformed(place, f"no turn ends with {END_OF_TURN}")
            if not ends and not line.endswith("\n"):
                fault = f"{place} is the last and does not end with {END_OF_TURN}: its last turn may be cut."
                raise UserError(fault, "Get the file anew.")
            yield RawRow(place, {"dialog": turns_of(line)})
