"""Conversations of several sessions, in the files of ParlAI and MSC-Self-Instruct.

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc/msc_personasummary/session_3/train.txt    one session a line: those of one `initial_data_id` belong together
    msc_self_instruct.jsonl                       MSC-Self-Instruct: rows of session 5, each with a question

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, told_apart
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, json_lines, malformed, text_of
from ttabench.readers.layouts import tops
from ttabench.readers.sources import Request, Table, table, table_of_text, text_file, usable


@dataclass(frozen=True, slots=True)
class Turn:
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
    file, sessions_read = numbered[last], f"session {last}"
    held = table_of_text(card, request, file, json_lines(file))
    rows = held.rows
    if "previous_dialogs" not in rows[0].values:
        rows = _chained({number: list(json_lines(own)) for number, own in numbered.items() if number <= last})
        sessions_read = f"sessions to {last}, joined by their ids,"
    notes = (f"{sessions_read} of {file.parent.parent}",)
    return replace(held, rows=rows, label=f"folder:{request.source}", notes=notes)


def _chained(sessions: Mapping[int, Sequence[RawRow]]) -> list[RawRow]:
    """Rows of one session each as rows with those before, one a conversation, by the first session it has."""
    chains: dict[str, dict[int, RawRow]] = {}
    for number, rows in sessions.items():
        for row in rows:
            key = row.values.get("initial_data_id")
            if not isinstance(key, str | int) or not str(key).strip():
                raise malformed(row.place, "no initial_data_id, which says whose session it is")
            own = chains.setdefault(str(key).strip(), {})
            if number in own:
                raise malformed(row.place, f"the id {key!r:.60} stands at {own[number].place}, too")
            own[number] = row
    made = []
    for *before, last in (chain.values() for chain in chains.values()):
        earlier = [{"dialog": row.values.get("dialog")} for row in before]
        made.append(RawRow(last.place, {**last.values, "previous_dialogs": earlier}))
    return made


# --- rows ------------------------------------------------------------------------------------------------------------


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
    place, cells = raw.place, {field: raw.cell(names) for field, names in card.columns.items()}
    previous = []
    for number, dialogue in enumerate(_list(place, "previous_dialogs", cells.get("previous"))):
        held = dialogue.get("dialog") if isinstance(dialogue, Mapping) else dialogue
        previous.append(_turns(f"{place} previous_dialogs[{number}]", held))
    current = _turns(place, cells.get("dialog"))
    if not all(previous):
        return "a session without turns"
    if not previous and not current:
        return "no session"
    turns = [turn for session in (*previous, current) for turn in session]
    if not all(turn.text for turn in turns):
        return "a turn without text"
    pair = _question(place, cells.get("question")) if asked else ("", "")
    if asked and not all(pair):
        return "no question" if not pair[0] else "no answer"
    metadata, name = cells.get("metadata"), cells.get("id")
    if name is None and isinstance(metadata, Mapping):
        name = metadata.get("initial_data_id")
    key = _text(place, "initial_data_id", str(name) if isinstance(name, int) else name)
    key = key or fingerprint(*(turn.line for turn in turns))
    questions = (pair,) if asked else ()
    return Conversation(id=key, published=key, previous=tuple(previous), current=current, questions=questions)


def _question(place: str, value: object) -> tuple[str, str]:
    """A question with its answer."""
    if not isinstance(value, Mapping):
        return "", ""
    return _text(place, "self_instruct B", value.get("B")), _text(place, "self_instruct A", value.get("A"))


def _turns(place: str, value: object) -> Session:
    turns = []
    for number, turn in enumerate(_list(place, "dialog", value)):
        where = f"{place} turn {number}"
        text, speaker = (turn.get("text"), turn.get("id")) if isinstance(turn, Mapping) else (turn, None)
        name = _text(where, "id", speaker) or f"Speaker {1 + number % 2}"
        turns.append(Turn(name, " ".join(text_of(where, "text", text).split())))
    return tuple(turns)


def _list(place: str, field: str, value: object) -> list[object]:
    if not isinstance(value, list | tuple | None):
        raise malformed(place, f"{field} is {brief(value)}, no list")
    return list(value or ())


def _text(place: str, field: str, value: object) -> str:
    """On one line, without blanks around it; nothing for null."""
    return "" if value is None else " ".join(text_of(place, field, value).split())
