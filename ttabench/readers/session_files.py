"""Conversations of several sessions, in the files of ParlAI and MSC-Self-Instruct.

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc/msc_personasummary/session_3/train.txt    one session a line: those of one `initial_data_id` belong together
    msc_self_instruct.jsonl                       MSC-Self-Instruct: rows of session 5, each with a question

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, told_apart
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, json_lines
from ttabench.readers.sources import Request, Table, table, table_of_text, text_file, tops, usable


class Turn(NamedTuple):
    """One turn of a speaker."""

    speaker: str
    text: str

    @property
    def line(self) -> str:
        """The turn as transcripts have it."""
        return f"{self.speaker}: {self.text}"


Session = tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Sessions of the same two speakers."""

    id: str
    """Unique in its source: the published id, else a hash of the texts; other sessions under it end in #2, #3, ..."""
    published: str
    """The id as it was published; the same conversation, up to another session, has the same."""
    previous: tuple[Session, ...]
    current: Session
    """The session that goes on; its turns may be none."""
    questions: tuple[tuple[str, str], ...] = ()
    """Each with its answer."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All of them, in order."""
        return (*self.previous, self.current) if self.current else self.previous

    def texts(self) -> Iterator[str]:
        """All turns, as texts."""
        return (turn.line for session in self.sessions for turn in session)


def transcript(session: Iterable[Turn]) -> str:
    """One line a turn."""
    return "\n".join(turn.line for turn in session)


def session_table(card: Card, request: Request, session: int | None) -> Table:
    """The rows of a split from the hub, a file or a folder: of the conversations that have come to a session, by
    default the last one there.
    """
    path = Path(request.source)
    numbered = {} if request.source == "hub" or not path.is_dir() else _sessions(card, request.split, path)
    if session is not None and session not in numbered:
        known = ", ".join(map(str, sorted(numbered))) or "none (session_1, session_2 ...)"
        fault = f"{request.source} has no folder of session={session} of split {request.split!r}; it has {known}."
        raise UserError(fault, "Leave session out, or give another.")
    if numbered:
        return _of_folders(card, request, numbered, max(numbered) if session is None else session)
    file = text_file(card, request.split, path, [path])
    return table_of_text(card, request, file, json_lines(file)) if file else table(card, request)


def _sessions(card: Card, split: str, base: Path) -> dict[int, Path]:
    """The files of a split by session, in the first folder that has some."""
    for top in tops(base, card.source.folders):
        folders = ((re.fullmatch(r"session_(\d{1,3})", folder.name), folder) for folder in top.iterdir())
        files = {int(match[1]): text_file(card, split, folder, [folder]) for match, folder in folders if match}
        if held := {number: file for number, file in sorted(files.items()) if file}:
            return held
    return {}


def _of_folders(card: Card, request: Request, numbered: Mapping[int, Path], last: int) -> Table:
    """The rows of a session, each with those before it: published so, or chained by their ids."""
    file, sessions_read = numbered[last], f"session {last}"
    held = table_of_text(card, request, file, json_lines(file))
    rows = held.rows
    if "previous_dialogs" not in rows[0].values:
        sessions_read = f"sessions to {last}, joined by their ids,"
        chains: dict[object, list[RawRow]] = {}
        for own in (own for number, own in numbered.items() if number <= last):
            for row in json_lines(own):
                chains.setdefault(row.needed(["initial_data_id"]), []).append(row)
        rows = [
            RawRow(
                final.place, {**final.values, "previous_dialogs": [{"dialog": row.cell(["dialog"])} for row in before]}
            )
            for *before, final in chains.values()
        ]
    notes = (f"{sessions_read} of {file.parent.parent}",)
    return replace(held, rows=rows, label=f"folder:{request.source}", notes=notes)


def conversations(card: Card, data: Table, *, asked: bool) -> tuple[list[Conversation], dict[str, int]]:
    """(usable conversations in file order, dropped rows by reason), with their questions where they are `asked`."""
    first = RawRow(data.where, data.rows[0].values)
    first.needed(card.columns["dialog"], f"Give rows of sessions. {card.source.how}")
    if asked:
        first.needed(card.columns["question"], f"Score turns instead: --task-set ask=next. {card.source.how}")
    by_key: dict[tuple[str, str], Conversation] = {}
    ids: Counter[str] = Counter()
    parsed, dropped = usable(data, lambda raw: _conversation(card, raw, asked=asked))
    for row in parsed:
        key = row.published, fingerprint(*row.texts())
        before = by_key.get(key)
        if before is None:
            by_key[key] = replace(row, id=told_apart(row.id, ids))
        elif set(row.questions) <= set(before.questions):
            dropped["the same row twice"] += 1
        else:
            by_key[key] = replace(before, questions=(*before.questions, *row.questions))
    return list(by_key.values()), dict(dropped)


def _conversation(card: Card, raw: RawRow, *, asked: bool) -> Conversation | str:
    """The conversation of a row, or the reason why it is dropped."""
    cells: dict[str, Any] = {field: raw.cell(names) for field, names in card.columns.items()}
    previous = [
        _turns(session.get("dialog") if isinstance(session, Mapping) else session)
        for session in _listed(cells.get("previous"))
    ]
    current = _turns(cells.get("dialog"))
    if not all(previous):
        return "a session without turns"
    if not previous and not current:
        return "no session"
    turns = [turn for session in (*previous, current) for turn in session]
    if not all(turn.text for turn in turns):
        return "a turn without text"
    pair = cells.get("question") or {}
    question, answer = (_text(pair.get(key)) for key in ("B", "A"))
    if asked and not (question and answer):
        return "no answer" if question else "no question"
    name = cells.get("id")
    if name is None:
        name = (cells.get("metadata") or {}).get("initial_data_id")
    key = _text(None if name is None else str(name)) or fingerprint(*(turn.line for turn in turns))
    questions = ((question, answer),) if asked else ()
    return Conversation(id=key, published=key, previous=tuple(previous), current=current, questions=questions)


def _turns(value: object) -> Session:
    turns = []
    for number, turn in enumerate(_listed(value)):
        text, speaker = (turn.get("text"), turn.get("id")) if isinstance(turn, Mapping) else (turn, None)
        turns.append(Turn(_text(speaker) or f"Speaker {1 + number % 2}", _text(text)))
    return tuple(turns)


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"{brief(value)} is no list of turns")
    return list(value or ())


def _text(value: str | None) -> str:
    """On one line, without blanks around it; nothing for null."""
    return " ".join(str.split(value or ""))
