"""Conversations of several sessions (Multi-Session Chat, arXiv 2107.07567): read earlier ones, then ask about them.

What is asked (`ask`):
    questions  what was said in earlier sessions (MSC-Self-Instruct, arXiv 2310.08560; in the protocol of Generative
               Adapter, arXiv 2411.05877). The session that goes on is not read, but with `include_current`.
    next       the turns of the session that follows, after every session: `step` says how many were read.
    last       the turns of the last session, after none, one, two ... of those before: the same turns at every step.
    turns      the turns of the last session, each read once it was scored: `step` counts earlier sessions and turns.

    Episode("msc/test/valid_0", [Observe("Speaker 1: Hi.\\nSpeaker 2: Hello!"), Observe(...), Ask("What was ...?")])

A session is one observation, one line a turn. A turn is scored behind the turns of its own session (`window_turns` of
them), which stand in its prompt whatever the method is, unless turns are what is read; the end of a text is not scored.

Files are those of ParlAI and of MSC-Self-Instruct:

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc/msc_personasummary/session_3/train.txt    one session a line: those of one `initial_data_id` belong together
    msc_self_instruct.jsonl                       MSC-Self-Instruct: rows of session 5, each with a question

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Bound,
    Training,
    drawn,
    fingerprint,
    in_order,
    spread,
    told_apart,
)  # fmt: skip
from ttabench.readers.cards import Card
from ttabench.readers.formats import RawRow, brief, json_lines
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenCount, resolve
from ttabench.readers.sources import Request, Table, find, table, tops, twin_table, usable
from ttabench.readers.tokens import Tokens

TXT = {".txt": json_lines}
"""ParlAI's files, which are tables whatever their name ends in."""


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


def transcript(session: Session) -> str:
    """One line a turn."""
    return "\n".join(turn.line for turn in session)


def session_table(card: Card, request: Request, session: int | None) -> Table:
    """The rows of a split from the hub, a file or a folder: of the conversations that have come to a session, by
    default the last one there, each with those before it: published so, or chained by their ids.
    """
    path, files = Path(request.source), dict[int, Path]()
    if request.source != "hub" and path.is_dir():
        for folder in (folder for top in tops(path, card.source.folders) for folder in sorted(top.iterdir())):
            match = re.fullmatch(r"session_(\d{1,3})", folder.name)
            if match and (there := find(card.splits[request.split], [folder], TXT)[0]):
                files.setdefault(int(match[1]), there[0])
    if session is not None and session not in files:
        known = ", ".join(map(str, sorted(files))) or "none (session_1, session_2 ...)"
        fault = f"{request.source} has no folder of session={session} of split {request.split!r}; it has {known}."
        raise UserError(fault, "Leave session out, or give another.")
    if not files:
        return table(card, request, TXT)
    last = max(files) if session is None else session
    held, read_ = table(card, replace(request, source=str(files[last])), TXT), f"session {last}"
    rows = held.rows
    if "previous_dialogs" not in rows[0].values:
        read_ = f"sessions to {last}, joined by their ids,"
        chains: dict[object, list[RawRow]] = {}
        for number in (number for number in sorted(files) if number <= last):
            for row in json_lines(files[number]):
                chains.setdefault(row.needed(["initial_data_id"]), []).append(row)
        rows = []
        for *before, final in chains.values():
            earlier = [{"dialog": row.cell(["dialog"])} for row in before]
            rows.append(RawRow(final.place, {**final.values, "previous_dialogs": earlier}))
    notes = (f"{read_} of {files[last].parent.parent}",)
    return replace(held, rows=rows, label=f"folder:{request.source}", notes=notes)


def conversations(card: Card, data: Table, *, asked: bool) -> list[Conversation]:
    """Usable conversations in file order, with their questions where they are `asked`."""
    first = RawRow(data.where, data.rows[0].values)
    first.needed(card.columns["dialog"], f"Give rows of sessions. {card.source.how}")
    if asked:
        first.needed(card.columns["question"], f"Score turns instead: --task-set ask=next. {card.source.how}")
    by_key: dict[tuple[str, str], Conversation] = {}
    ids: Counter[str] = Counter()
    for row in usable(data, lambda raw: _conversation(card, raw, asked=asked)):
        key = row.published, fingerprint(*row.texts())
        before = by_key.get(key)
        if before is None:
            by_key[key] = replace(row, id=told_apart(row.id, ids))
        elif set(row.questions) <= set(before.questions):
            data.unused["the same row twice"] += 1
        else:
            by_key[key] = replace(before, questions=(*before.questions, *row.questions))
    return list(by_key.values())


def _conversation(card: Card, raw: RawRow, *, asked: bool) -> Conversation | str:
    """The conversation of a row, or the reason why it is dropped."""
    cells: dict[str, Any] = {field: raw.cell(names) for field, names in card.columns.items()}
    previous = tuple(
        _turns(session.get("dialog") if isinstance(session, Mapping) else session)
        for session in _listed(cells.get("previous"))
    )
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
    name = (cells.get("metadata") or {}).get("initial_data_id") if cells.get("id") is None else cells["id"]
    key = _text(None if name is None else str(name)) or fingerprint(*(turn.line for turn in turns))
    questions = ((question, answer),) if asked else ()
    return Conversation(id=key, published=key, previous=previous, current=current, questions=questions)


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


_OF_A_TWIN = 32
SCORED = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, the mean over conversations, and a word."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    ask: Literal["questions", "next", "last", "turns"] = "questions"
    conversations: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    session: Annotated[int, Field(gt=0)] | None = None
    """Of ParlAI's folders: conversations that have come to this session; None for the last one there."""
    steps: Annotated[StepCounts | None, BeforeValidator(lambda value: None if value in ("", "all") else value)] = None
    """Sessions read before queries: "2,4"; "all" is after every one, of questions after all. Of ask=turns: sessions
    and turns."""
    include_current: bool = False
    """Read the session that goes on, too, before the questions."""
    window_turns: Annotated[int, Field(ge=0)] = 16
    """Turns of its own session in front of a turn that is scored, at most."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples of the card in front of every question, in the words of its template."""
    max_new_tokens: TokenCount = 20


@dataclass(frozen=True, kw_only=True)
class Sessions(Bound[Settings]):
    """A `readers.Task` over conversations, one episode each."""

    found: Sequence[Conversation]
    """All of the source, in file order."""
    chosen: Sequence[Conversation]
    """Those that are read and asked about."""

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        again = sum(conversation.id != conversation.published for conversation in self.found)
        fault = f"{again} conversations have the id of another and other sessions: their ids end in #2, #3 ..."
        sentences = [fault] if again else []
        if len(self.chosen) == len(self.found) and not self.mini:
            sentences.append("all conversations of the source are read: every seed gives the same figures")
        return sentences

    @cached_property
    def _asks(self) -> dict[str, list[Ask]]:
        """By conversation, after `limit`."""
        every = [(conversation.id, ask) for conversation in self.chosen for ask in self._of(conversation)]
        asks: dict[str, list[Ask]] = {}
        for name, ask in spread(every, self.limit):
            asks.setdefault(name, []).append(ask)
        return asks

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Conversation]]:  # noqa: ARG002
        """One episode a conversation that is asked about."""
        for one in self.chosen:
            if one.id in self._asks:
                yield Episode(key=self.key(one.id), steps=self._steps(one, self._asks[one.id])), one

    def _steps(self, conversation: Conversation, asks: Sequence[Ask]) -> tuple[Step, ...]:
        return tuple(in_order(self._observes(conversation), ((ask.at.count, ask) for ask in asks)))

    def _observes(self, conversation: Conversation) -> list[Observe]:
        before = len(conversation.sessions) - 1
        return [
            Observe(text=transcript(one), key=f"{conversation.id}@{number}", joiner=self._joiner(number > before))
            for number, one in enumerate(self._read(conversation))
        ]

    def _joiner(self, inner: bool) -> str:
        """Between sessions, or the turns of one where these are read."""
        return "\n" if inner and self.settings.ask == "turns" else self.card.prompt.joiner

    def _read(self, conversation: Conversation) -> Sequence[Session]:
        """Sessions that are read, or may be; of the last its turns, where these are read."""
        if self.settings.ask == "questions":
            return conversation.sessions if self.settings.include_current else conversation.previous
        *before, last = conversation.sessions
        return (*before, *((turn,) for turn in last[:-1])) if self.settings.ask == "turns" else before

    def _of(self, conversation: Conversation) -> Iterator[Ask]:
        """Every query about a conversation, in order."""
        settings, name, there = self.settings, conversation.id, len(self._read(conversation))
        asking = settings.ask == "questions"
        every = (there,) if asking else range(there + 1)
        *before, last = [()] if asking else conversation.sessions
        for step in sorted(step for step in set(every if settings.steps is None else settings.steps) if step <= there):
            if asking:
                for number, (question, answer) in enumerate(conversation.questions, 1):
                    key = name if number == 1 else f"{name}/q{number}"
                    yield self._question(key if settings.steps is None else f"{key}@{step}", step, question, answer)
            elif settings.ask == "turns":
                if step >= len(before):
                    yield self._turn(f"{name}@{step}", step, last, step - len(before), seen=0)
            else:
                scored = conversation.sessions[step] if settings.ask == "next" else last
                for number in range(len(scored)):
                    yield self._turn(f"{name}@{step}.{number}", step, scored, number, seen=settings.window_turns)

    def _question(self, key: str, step: int, question: str, answer: str) -> Ask:
        prompt = self.card.prompt
        return Ask(
            prompt=prompt.asked(question, self.settings.prompt, self.settings.examples),
            question=question,
            key=key,
            want=prompt.generated((answer,), self.settings.max_new_tokens),
            joiner=prompt.joiner,
            at=At(step),
        )

    def _turn(self, key: str, step: int, session: Session, number: int, *, seen: int) -> Ask:
        """A turn behind so many of its own session, and `step` pieces read."""
        turn, before = session[number], session[max(0, number - seen) : number]
        lead = "".join(f"{earlier.line}\n" for earlier in before)
        return Ask(
            prompt=f"{lead}{turn.speaker}:",
            key=key,
            want=Score(continuation=f" {turn.text}", words=len(turn.text.split())),
            joiner=self._joiner(number > 0),
            at=At(step),
        )

    def instead(self, own: Conversation, tokens: Tokens | None) -> list[Observe]:  # noqa: ARG002
        """The sessions of the next conversation, for the last those of the first."""
        return self._observes(self._next(own))

    def _next(self, own: Conversation) -> Conversation:
        """The next conversation, of other speakers and other texts; in the miniature world about nobody of the own.

        Where turns are read, the next with as many to read, or else the one with most.
        """

        def length(one: Conversation) -> int:
            return len(self._read(one))

        def ordered() -> Iterator[Conversation]:
            every = partial(self.around, self.found, own, lambda seed: self._written(seed, 4, self.arguments))
            yield from (one for one in every() if length(one) >= least)
            yield from sorted(filter(length, every()), key=length, reverse=True)

        least = max(1, length(own)) if self.settings.ask == "turns" else 1
        known = self._told(own, own.sessions)
        return self.apart(known, ordered(), lambda one: self._told(one, self._read(one)))

    def _told(self, one: Conversation, read_: Sequence[Session]) -> set[str]:
        """What two conversations must not share: in the miniature world the people that they name, too."""
        people = {name for text in one.texts() for name in names_in(text)} if self.mini else set()
        return {one.published, *map(transcript, read_), *people}

    def _written(self, seed: int, number: int, arguments: Mapping[str, Any]) -> list[Conversation]:
        """So many conversations of the miniature world."""
        data = twin_table(self.card, self.split, seed, number, arguments)
        return conversations(self.card, data, asked=self.settings.ask == "questions")

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One conversation each, as the protocol asks it; files are read in epochs, each in a new order.

        A mini source writes a new one of `documents` sessions, with `questions` for each of them.
        """
        queue: list[Conversation] = []
        while True:
            if self.mini:
                size = {"sessions": training.documents, "questions": training.documents * training.questions}
                known = {key: value for key, value in size.items() if key in self.arguments}
                queue = self._written(training.draws.getrandbits(48), 1, {**self.arguments, **known})
            elif not queue:
                queue = training.draws.sample(self.chosen, len(self.chosen))
            conversation = queue.pop()
            yield self.split, self._steps(conversation, list(self._of(conversation)))

    def counts(self) -> dict[str, Json]:
        """Counts of the source, of the pieces read, and of the queries asked."""
        counted = {"rows": len(self.found), "conversations": len(self._asks)}
        return {**counted, "sessions": self.n_observes, "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Everything said in the conversations that are read, with their questions."""
        for conversation in self.chosen:
            yield from (conversation.id, *conversation.texts())
            yield from (text for pair in conversation.questions for text in pair)


def read(card: Card, request: Request) -> Sessions:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if settings.ask != "questions":
        if settings.include_current:
            fault = f"include_current is about questions; ask={settings.ask} scores turns."
            raise UserError(fault, "Leave include_current out.")
        card = card.measured(*SCORED, chance=None)
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, settings.conversations or _OF_A_TWIN, arguments)
    else:
        data = session_table(card, request, settings.session)
    found = conversations(card, data, asked=settings.ask == "questions")
    chosen = drawn(found, settings.conversations, f"conversations {request.seed}")
    return Sessions(
        card=card, request=request, settings=settings, arguments=arguments, data=data, found=found, chosen=chosen
    )
