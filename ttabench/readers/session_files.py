"""Where conversations of several sessions lie: ParlAI's folders of Multi-Session Chat, or one file of them.

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc/msc_personasummary/session_3/train.txt    one session a line: those of one `initial_data_id` belong together
    msc_self_instruct.jsonl                       MSC-Self-Instruct: rows of session 5, each with a question

Rows of one session a line become rows as the first file has them: the last session, and `previous_dialogs` before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.formats import json_lines
from ttabench.readers.layouts import serving, tops
from ttabench.readers.raw import RawRow, malformed
from ttabench.readers.sources import Request, Table, table

_FOLDER = re.compile(r"^session_(?P<number>\d{1,3})$")
_ENDINGS = (".txt", ".txt.gz")
Numbered = list[tuple[int, Path]]
"""(number of the session, a file of it), ascending."""


def session_table(card: Card, request: Request, session: int | None) -> Table:
    """The rows of a split from the hub, a file or a folder.

    Args:
        card: names the files of a split.
        request: what is asked for.
        session: the conversations that have come to this session; None for the last one there.

    Raises:
        UserError: the source, the split or the session is not there, or a row cannot be read.
    """
    path = Path(request.source)
    numbered = [] if request.source == "hub" or not path.is_dir() else _sessions(card, request.split, path)
    if numbered:
        return _of_folders(request, numbered, session)
    if session is not None:
        fault = f"session={session} chooses among folders session_1, session_2 ...: {request.source} has none"
        raise UserError(f"{fault} of split {request.split!r}.", "Leave session out.")
    file = _alone(card, request.split, path)
    if file is None:
        return table(card, request)
    notes = serving(card, request.split, _name(file), file)
    rows = list(json_lines(file))
    if not rows:
        raise UserError(f"{file} holds no rows for {card.name}.", "Give a source with rows.")
    kind = "file" if path.is_file() else "folder"
    return Table(rows=rows, label=f"{kind}:{path}", where=str(file), folder=file.parent, notes=notes)


def _name(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".txt")


def _files(card: Card, split: str, folder: Path) -> list[Path]:
    """Of a split, by its names on the card."""
    named = [folder / f"{name}{ending}" for name in card.splits[split].files for ending in _ENDINGS]
    return [file for file in named if file.is_file()]


def _alone(card: Card, split: str, path: Path) -> Path | None:
    """A file of lines that is given, or that a folder of one session holds."""
    if path.is_file():
        return path if path.name.endswith(_ENDINGS) else None
    return next(iter(_files(card, split, path)), None) if path.is_dir() else None


def _sessions(card: Card, split: str, base: Path) -> Numbered:
    """The files of a split in the first folder that has some."""
    for top in tops(base, card.source.folders):
        named = [(_FOLDER.match(folder.name), folder) for folder in top.iterdir() if folder.is_dir()]
        sessions = [
            (int(match["number"]), file) for match, at in named if match for file in _files(card, split, at)[:1]
        ]
        if sessions:
            return sorted(sessions)
    return []


def _of_folders(request: Request, numbered: Numbered, session: int | None) -> Table:
    numbers = [number for number, _ in numbered]
    if session is not None and session not in numbers:
        known = ", ".join(map(str, numbers))
        raise UserError(f"{request.source} has no session {session} of split {request.split!r}.", f"It has {known}.")
    last = numbers[-1] if session is None else session
    wanted = [(number, file) for number, file in numbered if number <= last]
    file = wanted[-1][1]
    rows = list(json_lines(file))
    if not rows:
        raise UserError(f"{file} holds no rows.", "Give a source with rows.")
    sessions_read = f"session {last}"
    if "previous_dialogs" not in rows[0].values:
        rows = _chained([(number, rows if own == file else list(json_lines(own))) for number, own in wanted])
        sessions_read = f"sessions to {last}, joined by their ids,"
    notes = (f"{sessions_read} of {file.parent.parent}",)
    return Table(rows=rows, label=f"folder:{request.source}", where=str(file), folder=file.parent, notes=notes)


def _chained(sessions: Sequence[tuple[int, list[RawRow]]]) -> list[RawRow]:
    """One row a conversation, by the first session it has.

    Raises:
        UserError: a session has no id, or two of one number have the same.
    """
    chains: dict[str, list[tuple[int, RawRow]]] = {}
    for number, rows in sessions:
        for row, key in _keyed(rows):
            own = chains.setdefault(key, [])
            if own and own[-1][0] == number:
                raise malformed(row.place, f"the id {key[:60]!r} stands at {own[-1][1].place}, too")
            own.append((number, row))
    made = []
    for own in chains.values():
        before = [{"dialog": row.values.get("dialog")} for _, row in own[:-1]]
        last = own[-1][1]
        made.append(RawRow(last.place, {**last.values, "previous_dialogs": before}))
    return made


def _keyed(rows: Sequence[RawRow]) -> Iterator[tuple[RawRow, str]]:
    for row in rows:
        key = row.values.get("initial_data_id")
        if not isinstance(key, str | int) or not str(key).strip():
            raise malformed(row.place, "no initial_data_id, which says whose session it is")
        yield row, str(key).strip()
