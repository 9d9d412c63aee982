"""Conversations of several sessions between two speakers, and questions about them: ParlAI's folders, or rows.

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc/msc_personasummary/session_3/train.txt    one session a line: those of one `initial_data_id` belong together
    msc_self_instruct.jsonl                       MSC-Self-Instruct: rows of session 5, each with a question

    {"previous_dialogs": [{"dialog": [{"text": "Hi."}, {"text": "Hello!"}], "time_back": "2 days ago"}, ...],
     "dialog": [{"text": "Back again?", "id": "Speaker 1"}, ...], "metadata": {"initial_data_id": "valid_0"},
     "self_instruct": {"B": "What was the name of your greyhound?", "A": "Biscuit!"}}

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without. Rows of
one id with the same sessions are one conversation with several questions. Personas and summaries are not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, reasons, told_apart
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, json_lines, malformed, text_of
from ttabench.readers.layouts import serving, tops
from ttabench.readers.sources import Request, Table, table


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


# --- files -----------------------------------------------------------------------------------------------------------


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
        return _of_folders(request, numbered, max(numbered) if session is None else session)
    file = path if path.is_file() and path.name.endswith((".txt", ".txt.gz")) else _file(card, request.split, path)
    if file is None:
        return table(card, request)
    rows = list(json_lines(file))
    if not rows:
        raise UserError(f"{file} holds no rows for {card.name}.", "Give a source with rows.")
    notes = serving(card, request.split, file.name.removesuffix(".gz").removesuffix(".txt"), file)
    kind = "file" if path.is_file() else "folder"
    return Table(rows=rows, label=f"{kind}:{path}", where=str(file), folder=file.parent, notes=notes)


def _file(card: Card, split: str, folder: Path) -> Path | None:
    """Of a split in a folder, by its names on the card."""
    named = (folder / f"{name}{ending}" for name in card.splits[split].files for ending in (".txt", ".txt.gz"))
    return next((file for file in named if file.is_file()), None)


def _sessions(card: Card, split: str, base: Path) -> dict[int, Path]:
    """The files of a split by session, in the first folder that has some."""
    for top in tops(base, card.source.folders):
        folders = ((re.fullmatch(r"session_(\d{1,3})", folder.name), folder) for folder in top.iterdir())
        files = {int(match[1]): _file(card, split, folder) for match, folder in folders if match}
        if held := {number: file for number, file in sorted(files.items()) if file}:
            return held
    return {}


def _of_folders(request: Request, numbered: Mapping[int, Path], last: int) -> Table:
    file = numbered[last]
    rows, sessions_read = list(json_lines(file)), f"session {last}"
    if not rows:
        raise UserError(f"{file} holds no rows.", "Give a source with rows.")
    if "previous_dialogs" not in rows[0].values:
        rows = _chained({number: list(json_lines(own)) for number, own in numbered.items() if number <= last})
        sessions_read = f"sessions to {last}, joined by their ids,"
    notes = (f"{sessions_read} of {file.parent.parent}",)
    return Table(rows=rows, label=f"folder:{request.source}", where=str(file), folder=file.parent, notes=notes)


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
    dropped: Counter[str] = Counter()
    for raw in data.rows:
        row = _conversation(card, raw, asked=asked)
        if isinstance(row, str):
            dropped[row] += 1
            continue
        key = row.published, fingerprint(*row.texts())
        before = by_key.get(key)
        if before is None:
            by_key[key] = replace(row, id=told_apart(row.id, ids))
        elif set(row.questions) <= set(before.questions):
            dropped["the same row twice"] += 1
        else:
            by_key[key] = replace(before, questions=(*before.questions, *row.questions))
    if not by_key:
        fault = f"None of the {len(data.rows)} rows of {data.where} is usable ({reasons(dropped)})."
        raise UserError(fault, "Give others.")
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
    if value is None:
        return "", ""
    if not isinstance(value, Mapping):
        raise malformed(place, f"self_instruct is {brief(value)}, no object")
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
