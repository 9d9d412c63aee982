"""Conversations of several sessions (Multi-Session Chat, arXiv 2107.07567): read earlier ones, then ask about them.

What is asked (`ask`):
    questions  what was said in earlier sessions (MSC-Self-Instruct, arXiv 2310.08560; in the protocol of Generative
               Adapter, arXiv 2411.05877). The session that goes on is not read.
    turns      the turns of the last session, each read once it was scored: `step` counts earlier sessions and turns.

    Episode("msc/test/valid_0", [Observe("Speaker 1: Hi.\\nSpeaker 2: Hello!"), Observe(...), Ask("What was ...?")])

A session is one observation, one line a turn; the end of a turn is not scored. Files are those of ParlAI and of
MSC-Self-Instruct:

    msc/msc_dialogue/session_5/test.txt           a JSON object a line, each with its `previous_dialogs`
    msc_self_instruct.jsonl                       rows of session 5, each with a question

Speakers alternate, from "Speaker 1" on, where their ids are missing: earlier sessions are published without.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound, Training, behind, drawn, fingerprint, in_order, spread, told_apart
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, json_lines
from ttabench.readers.sources import Request, Table, find, resolve, table, tops, twin_table, usable
from ttabench.readers.tokens import StepCounts, TokenCount, Tokens

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


def session_table(card: Card, request: Request) -> Table:
    """The rows of a split from the hub, a file or a folder, of ParlAI's folders the last session's."""
    path, files = Path(request.source), dict[int, Path]()
    folders = [folder for top in tops(path, card.source.folders) if top.is_dir() for folder in sorted(top.iterdir())]
    for folder in folders:
        match = re.fullmatch(r"session_(\d{1,3})", folder.name)
        if match and (there := find(card.splits[request.split], [folder], TXT)[0]):
            files[int(match[1])] = there[0]
    if not files:
        return table(card, request, TXT)
    held = table(card, replace(request, source=str(files[max(files)])), TXT)
    notes = (f"session {max(files)} of {files[max(files)].parent.parent}",)
    return replace(held, label=f"folder:{request.source}", notes=notes)


def conversations(card: Card, data: Table, *, asked: bool) -> list[Conversation]:
    """Usable conversations in file order, with their questions where they are `asked`."""
    first = RawRow(data.where, data.rows[0].values)
    first.needed(card.columns["dialog"], f"Give rows of sessions. {card.source.how}")
    if asked:
        first.needed(card.columns["question"], f"Score turns instead: --task-set ask=turns. {card.source.how}")
    by_key, ids = dict[tuple[str, str], Conversation](), Counter[str]()
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
    previous = tuple(_turns(session["dialog"]) for session in cells.get("previous") or ())
    current = _turns(cells.get("dialog"))
    turns = [turn for session in (*previous, current) for turn in session]
    if not all(previous) or not turns:
        return "a session without turns"
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


def _turns(dialog: Sequence[Mapping[str, Any]] | None) -> Session:
    return tuple(
        Turn(_text(turn.get("id")) or f"Speaker {1 + number % 2}", _text(turn["text"]))
        for number, turn in enumerate(dialog or ())
    )


def _text(value: str | None) -> str:
    """On one line, without blanks around it; nothing for null."""
    return " ".join(str.split(value or ""))


SCORED = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, the mean over conversations, and a word."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    ask: Literal["questions", "turns"] = "questions"
    conversations: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    steps: Annotated[StepCounts | None, BeforeValidator(lambda value: None if value == "all" else value)] = None
    """Pieces read before queries: "2,4"; "all" asks questions after all of them, and turns after every one."""
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

    @cached_property
    def _asks(self) -> dict[str, list[Ask]]:
        """By conversation, after `limit`."""
        every = [(one.id, ask) for one in self.chosen for ask in self._of(one)]
        asks = defaultdict[str, list[Ask]](list)
        for name, ask in spread(every, self.limit):
            asks[name].append(ask)
        return asks

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Conversation]]:  # noqa: ARG002
        """One episode a conversation that is asked about."""
        for one in self.chosen:
            if one.id in self._asks:
                yield Episode(key=self.key(one.id), steps=self._steps(one, self._asks[one.id])), one

    def _steps(self, conversation: Conversation, asks: Sequence[Ask]) -> tuple[Step, ...]:
        return tuple(in_order(self._observes(conversation), ((ask.at.count, ask) for ask in asks)))

    def _observes(self, conversation: Conversation) -> list[Observe]:
        pieces, last = [], len(conversation.sessions) - 1
        for number, one in enumerate(self._read(conversation)):
            joiner = "\n" if number > last else self.card.prompt.joiner  # between turns of the last session, and others
            pieces.append(Observe(text=transcript(one), key=f"{conversation.id}@{number}", joiner=joiner))
        return pieces

    def _read(self, conversation: Conversation) -> Sequence[Session]:
        """Sessions that are read; of the last its turns, where these are asked."""
        if self.settings.ask == "questions":
            return conversation.previous
        *before, last = conversation.sessions
        return (*before, *((turn,) for turn in last[:-1]))

    def _of(self, conversation: Conversation) -> Iterator[Ask]:
        """Every query about a conversation, in order."""
        wanted, there, prompt = self.settings.steps, len(self._read(conversation)), self.card.prompt
        if self.settings.ask == "turns":
            *before, last = conversation.sessions
            for step, turn in enumerate(last, len(before)):
                if wanted is None or step in wanted:
                    yield Ask(
                        prompt=f"{turn.speaker}:",
                        key=f"{conversation.id}@{step}",
                        want=Score(continuation=f" {turn.text}", words=len(turn.text.split())),
                        joiner="\n" if step > len(before) else prompt.joiner,
                        at=At(step),
                    )
            return
        for step in [there] if wanted is None else sorted(step for step in set(wanted) if step <= there):
            for number, (question, answer) in enumerate(conversation.questions, 1):
                key = conversation.id if number == 1 else f"{conversation.id}/q{number}"
                yield Ask(
                    prompt=prompt.asked(question, self.settings.prompt, self.settings.examples),
                    question=question,
                    key=key if wanted is None else f"{key}@{step}",
                    want=prompt.generated((answer,), self.settings.max_new_tokens),
                    joiner=prompt.joiner,
                    at=At(step),
                )

    def instead(self, own: Conversation, tokens: Tokens | None) -> list[Observe]:  # noqa: ARG002
        """The sessions of the next conversation, of other speakers and other texts; of a twin about nobody of the own.

        Where turns are read, the next with as many to read, or else the one with most.
        """
        least = max(1, len(self._read(own))) if self.settings.ask == "turns" else 1
        others = self.around(self.found, own, self._made, conversations=4)
        enough = (one for one in others if len(self._read(one)) >= least)
        longest = sorted(filter(self._read, behind(self.found, own)), key=lambda one: -len(self._read(one)))
        known = self._told(own, own.sessions)
        return self._observes(self.apart(known, chain(enough, longest), lambda one: self._told(one, self._read(one))))

    def _told(self, one: Conversation, read_: Sequence[Session]) -> set[str]:
        """What two conversations must not share: in the miniature world the people that they name, too."""
        people = {name for text in one.texts() for name in names_in(text)} if self.mini else set()
        return {one.published, *map(transcript, read_), *people}

    def _made(self, data: Table) -> list[Conversation]:
        return conversations(self.card, data, asked=self.settings.ask == "questions")

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One conversation each, as the protocol asks it; files are read in epochs, each in a new order.

        A mini source writes a new one of `documents` sessions, with `questions` for each of them.
        """
        size = {"sessions": training.documents, "questions": training.documents * training.questions}
        for conversation in self.epochs(training.draws, self.chosen, self._made, conversations=1, **size):
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
    if settings.ask == "turns":
        card = card.measured(*SCORED, chance=None)
    size, mini = {**arguments, "conversations": settings.conversations or 32}, request.source == "mini"
    data = twin_table(card, request.split, request.seed, size) if mini else session_table(card, request)
    found = conversations(card, data, asked=settings.ask == "questions")
    chosen = drawn(found, settings.conversations, f"conversations {request.seed}")
    return Sessions(
        card=card, request=request, settings=settings, arguments=arguments, data=data, found=found, chosen=chosen
    )
