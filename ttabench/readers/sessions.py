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


def session_table(card: Card, request: Request) -> RawTable:
    """The rows of a split from the hub, a file or a folder, of ParlAI's folders the last session's."""
    path, files = Path(request.source), dict[int, Path]()
    folders = [
        folder
        for top in archive_roots(path, card.source.folders)
        if top.is_dir()
        for folder in sorted(top.iterdir())
    ]
    for folder in folders:
        match = re.fullmatch(r"session_(\d{1,3})", folder.name)
        if match and (
            found := find_split_files(card.splits[request.split], [folder], TXT_FORMAT)[0]
        ):
            files[int(match[1])] = found[0]
    if not files:
        return load_table(card, request, TXT_FORMAT)
    held = load_table(card, replace(request, source=str(files[max(files)])), TXT_FORMAT)
    notes = (f"session {max(files)} of {files[max(files)].parent.parent}",)
    return replace(held, label=f"folder:{request.source}", notes=notes)


def parse_conversations(card: Card, data: RawTable, *, asked: bool) -> list[Conversation]:
    """Usable conversations in file order, with their questions where they are `asked`."""
    first = RawRow(data.location, data.rows[0].values)
    first.require(card.columns["dialog"], f"Give rows of sessions. {card.source.how}")
    if asked:
        first.require(
            card.columns["question"],
            f"Score turns instead: --task-set ask=turns. {card.source.how}",
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
    """The conversation of a row, or the reason why it is dropped."""
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
    """On one line, without blanks around it; nothing for null."""
    return " ".join(str.split(value or ""))


TURN_METRICS = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, the mean over conversations, and a word."""


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    ask: Literal["questions", "turns"] = "questions"
    conversations: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    steps: Annotated[
        StepCounts | None, BeforeValidator(lambda value: None if value == "all" else value)
    ] = None
    """Pieces read before queries: "2,4"; "all" asks questions after all of them, and turns after every one."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples of the card in front of every question, in the words of its template."""
    max_new_tokens: TokenCount = 20


@dataclass(frozen=True, kw_only=True)
class Sessions(Task[Settings]):
    """A `readers.Task` over conversations, one episode each."""

    available: Sequence[Conversation]
    """All of the source, in file order."""
    selected: Sequence[Conversation]
    """Those that are read and asked about."""

    @cached_property
    def _queries_by_conversation(self) -> dict[str, list[Query]]:
        """By conversation, after `limit`."""
        every = [(one.id, ask) for one in self.selected for ask in self._all_queries(one)]
        queries = defaultdict[str, list[Query]](list)
        for name, ask in pick_evenly(every, self.limit):
            queries[name].append(ask)
        return queries

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Conversation]]:  # noqa: ARG002
        """One episode a conversation that is asked about."""
        for one in self.selected:
            if one.id in self._queries_by_conversation:
                yield (
                    Episode(
                        key=self.episode_key(one.id),
                        steps=self._steps(one, self._queries_by_conversation[one.id]),
                    ),
                    one,
                )

    def _steps(self, conversation: Conversation, queries: Sequence[Query]) -> tuple[Step, ...]:
        return tuple(
            interleave(
                self._session_chunks(conversation), ((query.at.count, query) for query in queries)
            )
        )

    def _session_chunks(self, conversation: Conversation) -> list[Chunk]:
        chunks, last = [], len(conversation.sessions) - 1
        for number, one in enumerate(self._sessions_read(conversation)):
            joiner = (
                "\n" if number > last else self.card.prompt.joiner
            )  # between turns of the last session, and others
            chunks.append(
                Chunk(text=transcript(one), key=f"{conversation.id}@{number}", joiner=joiner)
            )
        return chunks

    def _sessions_read(self, conversation: Conversation) -> Sequence[Session]:
        """Sessions that are read; of the last its turns, where these are asked."""
        if self.settings.ask == "questions":
            return conversation.previous
        *before, last = conversation.sessions
        return (*before, *((turn,) for turn in last[:-1]))

    def _all_queries(self, conversation: Conversation) -> Iterator[Query]:
        """Every query about a conversation, in order."""
        asked_steps, n_sessions, prompt = (
            self.settings.steps,
            len(self._sessions_read(conversation)),
            self.card.prompt,
        )
        if self.settings.ask == "turns":
            *before, last = conversation.sessions
            for step, turn in enumerate(last, len(before)):
                if asked_steps is None or step in asked_steps:
                    yield Query(
                        prompt=f"{turn.speaker}:",
                        key=f"{conversation.id}@{step}",
                        want=Score(continuation=f" {turn.text}", words=len(turn.text.split())),
                        joiner="\n" if step > len(before) else prompt.joiner,
                        at=StreamPosition(step),
                    )
            return
        for step in (
            [n_sessions]
            if asked_steps is None
            else sorted(step for step in set(asked_steps) if step <= n_sessions)
        ):
            for number, (question, answer) in enumerate(conversation.questions, 1):
                key = conversation.id if number == 1 else f"{conversation.id}/q{number}"
                yield Query(
                    prompt=prompt.fill_template(
                        question, self.settings.prompt, self.settings.examples
                    ),
                    question=question,
                    key=key if asked_steps is None else f"{key}@{step}",
                    want=prompt.make_generate((answer,), self.settings.max_new_tokens),
                    joiner=prompt.joiner,
                    at=StreamPosition(step),
                )

    def swap_context(self, own: Conversation, tokens: Tokens | None) -> list[Chunk]:  # noqa: ARG002
        """The sessions of the next conversation, of other speakers and other texts; of a twin about nobody of the own.

        Where turns are read, the next with as many to read, or else the one with most.
        """
        least = max(1, len(self._sessions_read(own))) if self.settings.ask == "turns" else 1
        others = self.candidates(self.available, own, self._parse, conversations=4)
        enough = (one for one in others if len(self._sessions_read(one)) >= least)
        longest = sorted(
            filter(self._sessions_read, rows_after(self.available, own)),
            key=lambda one: -len(self._sessions_read(one)),
        )
        known = self._contents(own, own.sessions)
        return self._session_chunks(
            self.first_disjoint(
                known,
                chain(enough, longest),
                lambda one: self._contents(one, self._sessions_read(one)),
            )
        )

    def _contents(self, one: Conversation, read_: Sequence[Session]) -> set[str]:
        """What two conversations must not share: in the miniature world the people that they name, too."""
        people = (
            {name for text in one.texts() for name in names_in(text)}
            if self.is_synthetic
            else set()
        )
        return {one.published, *map(transcript, read_), *people}

    def _parse(self, data: RawTable) -> list[Conversation]:
        return parse_conversations(self.card, data, asked=self.settings.ask == "questions")

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One conversation each, as the protocol asks it; files are read in epochs, each in a new order.

        A mini source writes a new one of `documents` sessions, with `questions` for each of them.
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
        """Counts of the source, of the pieces read, and of the queries asked."""
        counted = {"rows": len(self.available), "conversations": len(self._queries_by_conversation)}
        return {**counted, "sessions": self.n_chunks, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Everything said in the conversations that are read, with their questions."""
        for conversation in self.selected:
            yield from (conversation.id, *conversation.texts())
            yield from (text for pair in conversation.questions for text in pair)


def read(card: Card, request: Request) -> Sessions:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    if settings.ask == "turns":
        card = card.with_metrics(*TURN_METRICS, chance=None)
    size, mini = (
        {**arguments, "conversations": settings.conversations or 32},
        request.source == "mini",
    )
    data = (
        synthetic_table(card, request.split, request.seed, size)
        if mini
        else session_table(card, request)
    )
    available = parse_conversations(card, data, asked=settings.ask == "questions")
    selected = sample_rows(available, settings.conversations, f"conversations {request.seed}")
    return Sessions(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        data=data,
        available=available,
        selected=selected,
    )
