"""Conversations of several sessions (Multi-Session Chat, arXiv 2107.07567): earlier ones are read,
then queried.

Queries (`ask`):
    questions  about earlier sessions (MSC-Self-Instruct, arXiv 2310.08560; protocol of Generative
               Adapter, arXiv 2411.05877). The current session is not read.
    turns      the turns of the last session, each read after it was scored: `step` counts earlier
               sessions and turns.

    Episode("msc/test/valid_0", [Chunk("Speaker 1: Hi.\\nSpeaker 2: Hello!"), Query("What ...?")])

A session is one chunk, one line per turn; the end of a turn is not scored. Files are those of
ParlAI and of MSC-Self-Instruct:

    msc/msc_dialogue/session_5/test.txt     a JSON object per line, each with its `previous_dialogs`
    msc_self_instruct.jsonl                 rows of session 5, each with a question

Speakers alternate, from "Speaker 1" on, if their ids are missing: earlier sessions are published
without.
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

from pydantic import BeforeValidator, NonNegativeInt, PositiveInt

from ttabench.core.types import Chunk, Episode, Json, Query, Score, Step, StreamPosition
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Task,
    Training,
    fingerprint,
    interleave,
    make_unique,
    pick_evenly,
    rows_after,
    sample_rows,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, read_json_lines
from ttabench.readers.sources import (
    RawTable,
    Request,
    archive_roots,
    find_split_files,
    load_table,
    parse_table,
    resolve_settings,
    synthetic_table,
)
from ttabench.readers.tokens import StepCounts, TokenCount, Tokens

TXT_FORMAT = {".txt": read_json_lines}
"""Format of ParlAI's files: JSON lines with the suffix .txt."""


class Turn(NamedTuple):
    """One turn of a speaker."""

    speaker: str
    text: str

    @property
    def line(self) -> str:
        """The turn as a line of a transcript."""
        return f"{self.speaker}: {self.text}"


Session = tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Sessions of the same two speakers."""

    id: str
    """Unique in its source: the published id, else a text hash; repeats end in #2, #3, ..."""
    published: str
    """Published id; rows with different sessions of one conversation share it."""
    previous: tuple[Session, ...]
    current: Session
    """The current session; it may be empty."""
    questions: tuple[tuple[str, str], ...] = ()
    """(question, answer) pairs."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions, in order."""
        return (*self.previous, self.current) if self.current else self.previous

    def texts(self) -> Iterator[str]:
        """Yield all turns as texts."""
        return (turn.line for session in self.sessions for turn in session)


def transcript(session: Session) -> str:
    """Format a session as one line per turn."""
    return "\n".join(turn.line for turn in session)


def session_table(card: Card, request: Request) -> RawTable:
    """Load the rows of a split from the hub, a file or a folder; of ParlAI's folders the last
    session is used.
    """
    files, split = dict[int, Path](), card.splits[request.split]
    for top in archive_roots(Path(request.source), card.source.folders):
        for folder in sorted(top.glob("session_*")):
            match = re.fullmatch(r"session_(\d{1,3})", folder.name)
            if match and (found := find_split_files(split, [folder], TXT_FORMAT)[0]):
                files[int(match[1])] = found[0]
    if not files:
        return load_table(card, request, TXT_FORMAT)
    last = max(files)
    table = load_table(card, replace(request, source=str(files[last])), TXT_FORMAT)
    notes = (f"session {last} of {files[last].parent.parent}",)
    return replace(table, label=f"folder:{request.source}", notes=notes)


def parse_conversations(card: Card, data: RawTable, *, asked: bool) -> list[Conversation]:
    """Parse the usable conversations in file order; `asked`: with their questions."""
    first = RawRow(data.location, data.rows[0].values)
    first.require(card.columns["dialog"], f"Use rows of sessions. {card.source.how}")
    if asked:
        first.require(
            card.columns["question"],
            f"Use --task-set ask=turns to score turns instead. {card.source.how}",
        )
    by_key, ids = dict[tuple[str, str], Conversation](), Counter[str]()
    for row in parse_table(data, lambda raw: _parse_conversation(card, raw, asked=asked)):
        key = row.published, fingerprint(*row.texts())
        before = by_key.get(key)
        if before is None:
            by_key[key] = replace(row, id=make_unique(row.id, ids))
        elif set(row.questions) <= set(before.questions):
            data.unused["the same row twice"] += 1
        else:
            by_key[key] = replace(before, questions=(*before.questions, *row.questions))
    return list(by_key.values())


def _parse_conversation(card: Card, raw: RawRow, *, asked: bool) -> Conversation | str:
    """Parse the conversation of a row, or return why it is left out."""
    cells: dict[str, Any] = {field: raw.cell(names) for field, names in card.columns.items()}
    previous = tuple(_parse_turns(session["dialog"]) for session in cells.get("previous") or ())
    current = _parse_turns(cells.get("dialog"))
    turns = [turn for session in (*previous, current) for turn in session]
    if not all(previous) or not turns:
        return "a session without turns"
    if not all(turn.text for turn in turns):
        return "a turn without text"
    pair = cells.get("question") or {}
    question, answer = (_text(pair.get(key)) for key in ("B", "A"))
    if asked and not (question and answer):
        return "no answer" if question else "no question"
    name = (
        (cells.get("metadata") or {}).get("initial_data_id")
        if cells.get("id") is None
        else cells["id"]
    )
    key = _text(None if name is None else str(name)) or fingerprint(*(turn.line for turn in turns))
    questions = ((question, answer),) if asked else ()
    return Conversation(
        id=key, published=key, previous=previous, current=current, questions=questions
    )


def _parse_turns(dialog: Sequence[Mapping[str, Any]] | None) -> Session:
    return tuple(
        Turn(_text(turn.get("id")) or f"Speaker {1 + number % 2}", _text(turn["text"]))
        for number, turn in enumerate(dialog or ())
    )


def _text(value: str | None) -> str:
    """Join a text to one line without blanks around it; empty for null."""
    return " ".join(str.split(value or ""))


TURN_METRICS = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, mean over conversations, per word."""


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    ask: Literal["questions", "turns"] = "questions"
    """Queries: questions about earlier sessions, or the turns of the last one."""
    conversations: PositiveInt | None = None
    """Number of conversations, drawn with the seed; None for all."""
    steps: Annotated[
        StepCounts | None, BeforeValidator(lambda value: None if value == "all" else value)
    ] = None
    """Numbers of chunks read before queries, as "2,4"; "all": questions after all of them, turns
    after each.
    """
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: NonNegativeInt = 0
    """Worked examples of the card before every question, in its template."""
    max_new_tokens: TokenCount = 20


@dataclass(frozen=True)
class Sessions(Task[Settings]):
    """A `Task` over conversations, one episode each."""

    available: Sequence[Conversation]
    """All conversations of the source, in file order."""
    selected: Sequence[Conversation]
    """Conversations that are read and queried."""

    @property
    def is_score_first(self) -> bool:  # type: ignore[override]  # depends on what is queried
        """True if turns are scored."""
        return self.settings.ask == "turns"

    @cached_property
    def _queries_by_conversation(self) -> dict[str, list[Query]]:
        """After `limit`."""
        pairs = [
            (conversation.id, query)
            for conversation in self.selected
            for query in self._all_queries(conversation)
        ]
        queries = defaultdict[str, list[Query]](list)
        for name, query in pick_evenly(pairs, self.limit):
            queries[name].append(query)
        return queries

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Conversation]]:  # noqa: ARG002
        """Yield one episode per queried conversation."""
        for conversation in self.selected:
            if queries := self._queries_by_conversation.get(conversation.id):
                steps = self._steps(conversation, queries)
                yield Episode(key=self.episode_key(conversation.id), steps=steps), conversation

    def _steps(self, conversation: Conversation, queries: Sequence[Query]) -> tuple[Step, ...]:
        return tuple(
            interleave(
                self._session_chunks(conversation), ((query.at.count, query) for query in queries)
            )
        )

    def _session_chunks(self, conversation: Conversation) -> list[Chunk]:
        chunks = []
        last = len(conversation.sessions) - 1
        for number, session in enumerate(self._sessions_read(conversation)):
            # a break joins turns of the last session
            joiner = "\n" if number > last else self.card.prompt.joiner
            chunks.append(
                Chunk(text=transcript(session), key=f"{conversation.id}@{number}", joiner=joiner)
            )
        return chunks

    def _sessions_read(self, conversation: Conversation) -> Sequence[Session]:
        """Return the sessions to read; if turns are queried, the last session as single turns."""
        if self.settings.ask == "questions":
            return conversation.previous
        *before, last = conversation.sessions
        return (*before, *((turn,) for turn in last[:-1]))

    def _all_queries(self, conversation: Conversation) -> Iterator[Query]:
        query_steps, prompt = self.settings.steps, self.card.prompt
        if self.settings.ask == "turns":
            *before, last = conversation.sessions
            for step, turn in enumerate(last, len(before)):
                if query_steps is None or step in query_steps:
                    yield Query(
                        prompt=f"{turn.speaker}:",
                        key=f"{conversation.id}@{step}",
                        want=Score(continuation=f" {turn.text}", words=len(turn.text.split())),
                        joiner="\n" if step > len(before) else prompt.joiner,
                        at=StreamPosition(step),
                    )
            return
        n_sessions = len(conversation.previous)
        for step in sorted(set(query_steps or [n_sessions])):
            if step > n_sessions:
                return
            for number, (question, answer) in enumerate(conversation.questions, 1):
                key = conversation.id if number == 1 else f"{conversation.id}/q{number}"
                yield Query(
                    prompt=prompt.fill_template(
                        question, self.settings.prompt, self.settings.examples
                    ),
                    question=question,
                    key=key if query_steps is None else f"{key}@{step}",
                    want=prompt.make_generate((answer,), self.settings.max_new_tokens),
                    joiner=prompt.joiner,
                    at=StreamPosition(step),
                )

    def swap_context(self, own: Conversation, tokens: Tokens | None) -> list[Chunk]:  # noqa: ARG002
        """Return the sessions of the next conversation with other speakers and texts.

        In the synthetic world it is about nobody of the own conversation. If turns are read, it is
        the next with as many to read, or else the one with the most.
        """
        min_sessions = max(1, len(self._sessions_read(own))) if self.settings.ask == "turns" else 1
        others = self.candidates(self.available, own, self._parse, conversations=4)
        long_enough = (other for other in others if len(self._sessions_read(other)) >= min_sessions)
        longest = sorted(
            filter(self._sessions_read, rows_after(self.available, own)),
            key=lambda other: -len(self._sessions_read(other)),
        )
        known = self._contents(own, own.sessions)
        return self._session_chunks(
            self.first_disjoint(
                known,
                chain(long_enough, longest),
                lambda other: self._contents(other, self._sessions_read(other)),
            )
        )

    def _contents(self, conversation: Conversation, read_: Sequence[Session]) -> set[str]:
        """Return the contents that two conversations must not share; in the synthetic world also
        the people they name.
        """
        people = names_in(*conversation.texts()) if self.is_synthetic else ()
        return {conversation.published, *map(transcript, read_), *people}

    def _parse(self, data: RawTable) -> list[Conversation]:
        return parse_conversations(self.card, data, asked=self.settings.ask == "questions")

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Yield one conversation each, queried as the protocol says; files are read in epochs, each
        in a new order.

        A mini source generates a new conversation of `documents` sessions, with `questions` for
        each of them.
        """
        size = {
            "sessions": training.documents,
            "questions": training.documents * training.questions,
        }
        for conversation in self.iter_training_rows(
            training.rng, self.selected, self._parse, conversations=1, **size
        ):
            yield self.split, self._steps(conversation, list(self._all_queries(conversation)))

    def counts(self) -> dict[str, Json]:
        """Count the rows of the source, the conversations and sessions read, and the questions."""
        counted = {"rows": len(self.available), "conversations": len(self._queries_by_conversation)}
        return {**counted, "sessions": self.n_chunks, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every turn and question of the conversations that are read."""
        for conversation in self.selected:
            yield from (conversation.id, *conversation.texts())
            yield from (text for pair in conversation.questions for text in pair)


def read(card: Card, request: Request) -> Sessions:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    if settings.ask == "turns":
        card = card.with_metrics(*TURN_METRICS, chance=None)
    if request.source == "mini":
        size = {**arguments, "conversations": settings.conversations or 32}
        data = synthetic_table(card, request.split, request.seed, size)
    else:
        data = session_table(card, request)
    available = parse_conversations(card, data, asked=settings.ask == "questions")
    selected = sample_rows(available, settings.conversations, f"conversations {request.seed}")
    return Sessions(card, request, settings, arguments, data, available, selected)
