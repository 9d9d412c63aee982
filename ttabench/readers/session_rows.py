"""Conversations of several sessions between two speakers, and questions about them.

    {"previous_dialogs": [{"dialog": [{"text": "Hi."}, {"text": "Hello!"}], "time_back": "2 days ago"}, ...],
     "dialog": [{"text": "Back again?", "id": "Speaker 1"}, ...], "metadata": {"initial_data_id": "valid_0"},
     "self_instruct": {"B": "What was the name of your greyhound?", "A": "Biscuit!"}}

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without. Rows of
one id with the same sessions are one conversation with several questions. Personas and summaries are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.description import fingerprint
from ttabench.readers.faults import brief
from ttabench.readers.raw import RawRow, malformed, proper
from ttabench.readers.sources import Table


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


def conversations(card: Card, data: Table, *, asked: bool) -> tuple[list[Conversation], dict[str, int]]:
    """(usable conversations in file order, dropped rows by reason).

    Args:
        card: names the columns.
        data: the rows.
        asked: questions are needed.

    Raises:
        UserError: a column is missing, a cell has the wrong shape, or not one row is usable.
    """
    first = data.rows[0].values
    for field in ("dialog", *(("question",) if asked else ())):
        if not set(card.columns[field]) & first.keys():
            wanted = " or ".join(map(repr, card.columns[field]))
            hint = "Score turns instead: --task-set ask=next." if field == "question" else "Give rows of sessions."
            has = brief(", ".join(map(str, first)), 160)
            raise UserError(f"{data.where} lacks the column {wanted}; it has {has}.", f"{hint} {card.source.how}")
    by_key: dict[tuple[str, str], Conversation] = {}
    ids: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for raw in data.rows:
        row = _conversation(card, raw, asked=asked)
        if isinstance(row, str):
            dropped[row] += 1
            continue
        key = row.published, fingerprint(*row.texts())
        before = by_key.get(key)
        if before is None:
            ids[row.published] += 1
            unique = row.id if ids[row.published] == 1 else f"{row.id}#{ids[row.published]}"
            by_key[key] = replace(row, id=unique)
        elif set(row.questions) <= set(before.questions):
            dropped["the same row twice"] += 1
        else:
            by_key[key] = replace(before, questions=(*before.questions, *row.questions))
    if not by_key:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
        raise UserError(f"None of the {len(data.rows)} rows of {data.where} is usable ({reasons}).", "Give others.")
    return list(by_key.values()), dict(dropped)


def _conversation(card: Card, raw: RawRow, *, asked: bool) -> Conversation | str:
    """The conversation of a row, or the reason why it is dropped."""

    def cell(field: str) -> object:
        return next((raw.values[name] for name in card.columns.get(field, ()) if name in raw.values), None)

    previous = []
    for number, dialogue in enumerate(_list(raw.place, "previous_dialogs", cell("previous"))):
        place = f"{raw.place} previous_dialogs[{number}]"
        turns = _turns(place, dialogue.get("dialog") if isinstance(dialogue, Mapping) else dialogue)
        if not turns:
            return "a session without turns"
        previous.append(turns)
    current = _turns(raw.place, cell("dialog"))
    if not previous and not current:
        return "no session"
    if any(not turn.text for session in (*previous, current) for turn in session):
        return "a turn without text"
    questions = _question(raw.place, cell("question")) if asked else ()
    if isinstance(questions, str):
        return questions
    texts = (turn.line for session in (*previous, current) for turn in session)
    name = _id(raw.place, cell("id"), cell("metadata")) or fingerprint(*texts)
    return Conversation(id=name, published=name, previous=tuple(previous), current=current, questions=questions)


def _question(place: str, value: object) -> tuple[tuple[str, str]] | str:
    """A question with its answer, or what is missing."""
    if not isinstance(value, Mapping):
        return "no question" if value is None else _refuse(place, "self_instruct", value, "no object")
    question, answer = (_text(place, f"self_instruct {key}", value.get(key)) for key in ("B", "A"))
    if not question or not answer:
        return "no question" if not question else "no answer"
    return ((question, answer),)


def _turns(place: str, value: object) -> Session:
    turns = []
    for number, turn in enumerate(_list(place, "dialog", value)):
        where = f"{place} turn {number}"
        text, speaker = (turn.get("text"), turn.get("id")) if isinstance(turn, Mapping) else (turn, None)
        if not isinstance(text, str):
            _refuse(where, "text", text, "no text")
        name = _text(where, "id", speaker) or f"Speaker {1 + number % 2}"
        turns.append(Turn(name, _text(where, "text", text)))
    return tuple(turns)


def _id(place: str, value: object, metadata: object) -> str:
    if value is None and isinstance(metadata, Mapping):
        value = metadata.get("initial_data_id")
    return _text(place, "initial_data_id", str(value) if isinstance(value, int) else value)


def _list(place: str, field: str, value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        _refuse(place, field, value, "no list")
    return list(value)  # type: ignore[call-overload,no-any-return]  # what is no list was refused


def _text(place: str, field: str, value: object) -> str:
    """On one line, without blanks around it; nothing for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        _refuse(place, field, value, "no text")
    return " ".join(proper(place, field, str(value)).split())


def _refuse(place: str, field: str, value: object, why: str) -> str:
    raise malformed(place, f"{field} is {brief(value)}, {why}")
