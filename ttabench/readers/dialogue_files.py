"""Where dialogues come from: DailyDialog's own files, rows of the hub or of tables, the miniature world.

    ijcnlp_dailydialog/test/dialogues_test.txt     Hey man , you wanna buy some weed ? __eou__ Some what ? __eou__

A line is a dialogue; rows of tables hold the list of its turns in one cell. Turns are read without the blanks of
tokenised text. The published ones have a blank in front of every mark, and apostrophes by themselves; CCM's released
code (arXiv 2312.03414) undoes both, parts the points of "..." and of "3.5", and takes the blanks on both sides of every
quote: `released` does that, too.

    detokenised("Let ’ s see , it costs 15 yuan .")      "Let's see, it costs 15 yuan."
    detokenised("Well ... I ' d go .", "released")       "Well. . . I'd go."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ttabench.core.errors import UserError
from ttabench.readers.base import reasons
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, opened
from ttabench.readers.layouts import places, serving
from ttabench.readers.sources import Request, table, twin_table

Wording: TypeAlias = Literal["plain", "released"]
"""Which blanks of the published turns are taken away."""
LEAST = 3
"""Turns: one that is read, one that is answered, and the answer."""
END_OF_TURN = "__eou__"
_PLAIN = str.maketrans("’‘´`“”，。？！：；", "''''\"\",.?!:;")
_RELEASED = str.maketrans("’。", "'.")
_RELEASED_MARK = re.compile(r" (?=[,.?!;'])")
_MARK = re.compile(r" (?=[,.?!;:])")
_APOSTROPHE = re.compile(r"(?<=\w) ?' ?(?=(?:s|t|m|d|ll|re|ve|clock)\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A dialogue."""

    id: str
    turns: tuple[str, ...]
    """In plain words, without who speaks."""

    @property
    def text(self) -> str:
        """All turns; two dialogues of one text are the same."""
        return "\n".join(self.turns)


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
    """The dialogues of `request.split` from the hub, a file or a folder."""
    source = Path(request.source)
    text = None if request.source == "hub" else _text_file(card, source, request.split)
    if text is None:
        rows = table(card, request)
        return _looked_at(card, rows.rows, rows.label, rows.notes, wording)
    notes = serving(card, request.split, text.name.removesuffix(".gz").removesuffix(".txt"), text)
    kind = "file" if text == source else "folder"
    return _looked_at(card, list(_lines(text)), f"{kind}:{source}", notes, wording)


def twin_dialogues(card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]) -> Dialogues:
    """Those of the miniature world, which have no blanks of tokenising."""
    return _looked_at(card, twin_table(card, split, seed, None, arguments).rows, "mini", (), "plain")


def _looked_at(card: Card, rows: Sequence[RawRow], label: str, notes: tuple[str, ...], wording: Wording) -> Dialogues:
    kept: list[Dialogue] = []
    dropped: Counter[str] = Counter()
    seen: dict[str, str] = {}
    for number, row in enumerate(rows):
        name = row.cell(card.columns.get("id", ()))
        dialogue = Dialogue(id=str(number if name is None else name), turns=_turns(card, row, wording))
        if dialogue.id in seen:
            raise malformed(row.place, f"the id {brief(dialogue.id)} is that of {seen[dialogue.id]}, too")
        seen[dialogue.id] = row.place
        if len(dialogue.turns) < LEAST:
            dropped[f"fewer than {LEAST} turns"] += 1
        elif not all(dialogue.turns):
            dropped["an empty turn"] += 1
        else:
            kept.append(dialogue)
    if not kept:
        hint = "Give a source with longer dialogues." if label != "mini" else "Ask for more with --task-set rows=N."
        why = reasons(dropped) or "no rows"
        raise UserError(f"{label.partition(':')[2] or label} holds no dialogue for {card.name} ({why}).", hint)
    return Dialogues(kept=tuple(kept), label=label, dropped=dict(dropped), notes=notes)


def _turns(card: Card, row: RawRow, wording: Wording) -> tuple[str, ...]:
    cell = row.needed(card.columns["turns"], "Give the published files.")
    if isinstance(cell, str) and END_OF_TURN in cell:
        cell = turns_of(cell)
    if not isinstance(cell, list | tuple) or not all(isinstance(turn, str) for turn in cell):
        raise malformed(row.place, f"the column {card.columns['turns'][0]!r} holds {brief(cell)}, no list of turns")
    return tuple(detokenised(turn, wording) for turn in cell)


def _text_file(card: Card, source: Path, split: str) -> Path | None:
    """The published file of a split: itself, in a folder, or in the split's folder of the archive."""
    if source.is_file() or not source.is_dir():
        return source if source.name.removesuffix(".gz").endswith(".txt") and source.exists() else None
    names = [f"{name}.txt{packed}" for name in card.splits[split].files for packed in ("", ".gz")]
    folders = [inner for folder in places(card, source) for inner in (folder, folder / split)]
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def _lines(path: Path) -> Iterator[RawRow]:
    """A row a line that is not blank."""
    with opened(path) as (lines, at):
        for line in filter(str.strip, lines):
            if END_OF_TURN not in line:
                raise malformed(f"{path} line {at.line}", f"no turn ends with {END_OF_TURN}")
            yield RawRow(f"{path} line {at.line}", {"dialog": turns_of(line)})


def turns_of(line: str) -> list[str]:
    """The turns in a line of the published files, each of which ends with `END_OF_TURN`."""
    *turns, rest = line.split(END_OF_TURN)
    return [*turns, rest] if rest.strip() else turns


def detokenised(turn: str, wording: Wording = "plain") -> str:
    """A turn without the blanks that tokenising left, its quotes and stops in ASCII."""
    if wording == "released":
        text = _RELEASED_MARK.sub("", turn.translate(_RELEASED)).replace("' ", "'")
        return ". ".join(part.strip() for part in text.split(".")).strip()
    text = " ".join(turn.translate(_PLAIN).split())
    return _APOSTROPHE.sub("'", _MARK.sub("", text))
