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
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Bound,
    Training,
    behind,
    drawn,
    fingerprint,
    in_order,
    other_seeds,
    spread,
    told_apart,
)
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, json_lines, malformed, text_of
from ttabench.readers.layouts import serving, tops
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount, resolve
from ttabench.readers.sources import Request, Table, table, twin_table, usable
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import check_judges, metric


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


# --- protocol --------------------------------------------------------------------------------------------------------


_OF_A_TWIN = 32
SCORED = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, the mean over conversations, and a word."""


def _steps(value: object) -> object:
    if value in ("", "all", None):
        return None
    return tuple(value.split(",")) if isinstance(value, str) else (value,) if isinstance(value, int) else value


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    ask: Literal["questions", "next", "last", "turns"] = "questions"
    conversations: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    session: Annotated[int, Field(gt=0)] | None = None
    """Of ParlAI's folders: conversations that have come to this session; None for the last one there."""
    steps: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, BeforeValidator(_steps)] = None
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
        for one in self._asked():
            yield Episode(key=self.key(one.id), steps=self._steps(one, self._asks[one.id])), one

    def _steps(self, conversation: Conversation, asks: Sequence[Ask]) -> tuple[Step, ...]:
        return tuple(in_order(self._observes(conversation), ((ask.at.count, ask) for ask in asks)))

    def _observes(self, conversation: Conversation) -> list[Observe]:
        inner, before = self.settings.ask == "turns", len(conversation.sessions) - 1
        return [
            Observe(
                text=transcript(session),
                key=f"{conversation.id}@{number}",
                joiner=self._joiner(inner and number > before),
            )
            for number, session in enumerate(self._read(conversation))
        ]

    def _joiner(self, inner: bool) -> str:
        """Between sessions, or the turns of one."""
        return "\n" if inner else self.card.prompt.joiner

    def _read(self, conversation: Conversation) -> Sequence[Session]:
        """Sessions that are read, or may be; of the last its turns, where these are read."""
        if self.settings.ask == "questions":
            return conversation.sessions if self.settings.include_current else conversation.previous
        *before, last = conversation.sessions
        return (*before, *((turn,) for turn in last[:-1])) if self.settings.ask == "turns" else before

    def _of(self, conversation: Conversation) -> Iterator[Ask]:
        """Every query about a conversation, in order."""
        settings, there = self.settings, len(self._read(conversation))
        if settings.ask == "questions":
            steps = settings.steps if settings.steps is not None else (there,)
            for step in sorted(set(steps)):
                if step <= there:
                    for number, (question, answer) in enumerate(conversation.questions, 1):
                        yield self._question(conversation.id, (number, step), question, answer)
            return
        *before, last = conversation.sessions
        for step in range(there + 1) if settings.steps is None else sorted(set(settings.steps)):
            if settings.ask == "turns":
                if len(before) <= step <= there:
                    yield self._turn((f"{conversation.id}@{step}", step), last, step - len(before), seen=0)
            elif step <= there:
                yield from self._turns(
                    conversation.id, conversation.sessions[step] if settings.ask == "next" else last, step
                )

    def _question(self, name: str, place: tuple[int, int], question: str, answer: str) -> Ask:
        """A question; `place` is its number and the sessions read."""
        number, step = place
        prompt, key = self.card.prompt, name if number == 1 else f"{name}/q{number}"
        return Ask(
            prompt=prompt.asked(question, self.settings.prompt, self.settings.examples),
            question=question,
            key=key if self.settings.steps is None else f"{key}@{step}",
            want=prompt.generated((answer,), self.settings.max_new_tokens),
            joiner=prompt.joiner,
            at=At(step),
        )

    def _turns(self, name: str, session: Session, step: int) -> Iterator[Ask]:
        for number in range(len(session)):
            yield self._turn((f"{name}@{step}.{number}", step), session, number, seen=self.settings.window_turns)

    def _turn(self, place: tuple[str, int], session: Session, number: int, *, seen: int) -> Ask:
        """A turn behind so many of its own session; `place` is the key of the query and what was read before."""
        key, step = place
        turn, before = session[number], session[max(0, number - seen) : number]
        lead = "".join(f"{earlier.line}\n" for earlier in before)
        return Ask(
            prompt=f"{lead}{turn.speaker}:",
            key=key,
            want=Score(continuation=f" {turn.text}", words=len(turn.text.split())),
            joiner=self._joiner(inner=self.settings.ask == "turns" and number > 0),
            at=At(step),
        )

    def instead(self, own: Conversation, tokens: Tokens | None) -> list[Observe]:  # noqa: ARG002
        """The sessions of the next conversation, for the last those of the first."""
        return self._observes(self._next(own))

    def _next(self, own: Conversation) -> Conversation:
        """The next conversation, of other speakers and other texts; in the miniature world about nobody of the own."""
        people, sessions = self._people(own), set(map(transcript, own.sessions))
        wanted = len(self._read(own)) if self.settings.ask == "turns" else 1
        most: Conversation | None = None
        for other in self._candidates(self.found.index(own)):
            pieces = self._read(other)
            strange = other.published != own.published and people.isdisjoint(self._people(other))
            if strange and sessions.isdisjoint(map(transcript, pieces)):
                if len(pieces) >= max(1, wanted):
                    return other
                if len(pieces) > (len(self._read(most)) if most else 0):
                    most = other
        if most is None:
            fault = f"{self.source} has no conversation of others with earlier sessions: there is no other context."
            raise UserError(fault, "Give a source with several conversations.")
        return most

    def _people(self, conversation: Conversation) -> set[str]:
        return {name for text in conversation.texts() for name in names_in(text)} if self.mini else set()

    def _candidates(self, place: int) -> Iterator[Conversation]:
        yield from behind(self.found, place)
        if self.mini:
            for seed in other_seeds(self.seed):
                yield from self._written(seed, 4, self.arguments)

    def remarks_on_others(self) -> list[str]:
        """Notes on the other contexts."""
        fewer = sum(len(self._read(self._next(own))) < len(self._read(own)) for own in self._asked())
        unit = "turns" if self.settings.ask == "turns" else "sessions"
        return [f"{fewer} conversations have fewer {unit} of others than of their own"] if fewer else []

    def _asked(self) -> list[Conversation]:
        return [conversation for conversation in self.chosen if conversation.id in self._asks]

    def _written(self, seed: int, number: int, arguments: Mapping[str, Any]) -> list[Conversation]:
        """So many conversations of the miniature world."""
        data = twin_table(self.card, self.split, seed, number, arguments)
        return conversations(self.card, data, asked=self.settings.ask == "questions")[0]

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One conversation each, as the protocol asks it; files are read in epochs, each in a new order."""
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
        return {
            "rows": len(self.found),
            "conversations": len(self._asked()),
            "sessions": self.n_observes,
            "questions": self.n_asks,
        }

    def texts(self) -> Iterator[str]:
        """Everything said in the conversations that are read, with their questions."""
        for conversation in self.chosen:
            yield from (conversation.id, *conversation.texts())
            yield from (text for pair in conversation.questions for text in pair)


def read(card: Card, request: Request) -> Sessions:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if settings.ask == "questions":
        check_judges(card.name, map(metric, card.metrics), "generate")
        card.prompt.check(card.name, settings.prompt, settings.examples)
    elif settings.include_current:
        fault = f"include_current is about questions; ask={settings.ask} scores turns."
        raise UserError(fault, "Leave include_current out.")
    else:
        card = card.model_copy(update={"metrics": SCORED, "main_metric": "ppl", "chance": None})
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, settings.conversations or _OF_A_TWIN, arguments)
    else:
        data = session_table(card, request, settings.session)
    found, dropped = conversations(card, data, asked=settings.ask == "questions")
    made = Sessions(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=data.label,
        data_notes=data.notes,
        unused=dropped,
        found=found,
        chosen=drawn(found, settings.conversations, f"conversations {request.seed}"),
    )
    if not made.n_asks:
        where = "the sessions of" if settings.steps is None else f"steps={','.join(map(str, settings.steps))} in"
        raise UserError(f"There is nothing to ask after {where} {data.where}.", "Change --task-set ask or steps.")
    return made
