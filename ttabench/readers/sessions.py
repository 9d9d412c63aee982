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
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound, Training, spread
from ttabench.readers.cards import Card
from ttabench.readers.control_contexts import other_seeds, with_pieces
from ttabench.readers.description import described
from ttabench.readers.protocol_options import resolve
from ttabench.readers.session_files import session_table
from ttabench.readers.session_protocol import Settings, check
from ttabench.readers.session_rows import Conversation, Session, conversations, transcript
from ttabench.readers.sources import Request, twin_table
from ttabench.readers.tokens import Tokens

_OF_A_TWIN = 32


@dataclass(frozen=True, kw_only=True)
class Sessions(Bound[Settings]):
    """A `readers.Task` over conversations, one episode each."""

    found: Sequence[Conversation]
    """All of the source, in file order."""
    chosen: Sequence[Conversation]
    """Those that are read and asked about."""

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        sentences = []
        again = sum("#" in conversation.id and conversation.id != conversation.published for conversation in self.found)
        if again:
            sentences.append(
                f"{again} conversations have the id of another and other sessions: their ids end in #2, #3 ..."
            )
        if len(self.chosen) == len(self.found) and not self.mini:
            sentences.append("all conversations of the source are read: every seed gives the same figures")
        return sentences

    @cached_property
    def _asks(self) -> dict[str, dict[int, list[Ask]]]:
        """By conversation and number of sessions read, after `limit`."""
        every = [(conversation.id, ask) for conversation in self.chosen for ask in self._of(conversation)]
        asks: dict[str, dict[int, list[Ask]]] = {}
        for name, ask in spread(every, self.limit):
            asks.setdefault(name, {}).setdefault(ask.at.count, []).append(ask)
        return asks

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002  # what readers take
        """One episode a conversation that is asked about (see `readers.Task`)."""
        for conversation in self.chosen:
            if conversation.id in self._asks:
                steps = tuple(_in_order(self._observes(conversation), self._asks[conversation.id]))
                yield Episode(key=self._key(conversation), steps=steps)

    def _key(self, conversation: Conversation) -> str:
        return f"{self.card.name}/{self.split}/{conversation.id}" + (f"/seed{self.seed}" if self.mini else "")

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

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the sessions of the next conversation, the last with those of the first (see `readers.Task`)."""
        by_key = {self._key(conversation): conversation for conversation in self.chosen}
        for episode in self.episodes(tokens):
            yield with_pieces(episode, self._observes(self._next(by_key[episode.key])))

    def _next(self, own: Conversation) -> Conversation:
        """The next conversation, of other speakers and other texts; in the miniature world about nobody of the own.

        Where turns are read, the next with as many to read, or else the one with most.
        """
        place, texts = self.found.index(own), set(own.texts())
        people = {name for text in texts for name in names_in(text)} if self.mini else set()
        wanted = len(self._read(own)) if self.settings.ask == "turns" else 0
        most: Conversation | None = None
        for other in self._candidates(place):
            named = {name for text in other.texts() for name in names_in(text)} if self.mini else set()
            sessions = {transcript(session) for session in self._read(other)}
            strange = other.published != own.published and not people & named
            if strange and sessions and sessions.isdisjoint(transcript(session) for session in own.sessions):
                if len(self._read(other)) >= wanted:
                    return other
                if most is None or len(self._read(other)) > len(self._read(most)):
                    most = other
        if most is not None:
            return most
        fault = f"{self.source} has no conversation of others with earlier sessions: there is no other context."
        raise UserError(fault, "Give a source with several conversations.")

    def _candidates(self, place: int) -> Iterator[Conversation]:
        yield from self.found[place + 1 :]
        yield from self.found[:place]
        if self.mini:
            for seed in other_seeds(self.seed):
                yield from self._written(seed, 4, self.arguments)

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        pairs = [
            (len(self._read(self._next(conversation))), len(self._read(conversation))) for conversation in self._asked()
        ]
        fewer = sum(other < own for other, own in pairs)
        unit = "turns" if self.settings.ask == "turns" else "sessions"
        notes = [f"{fewer} conversations have fewer {unit} of others than of their own"] if fewer else []
        return described(self.others(), notes)

    def _asked(self) -> list[Conversation]:
        return [conversation for conversation in self.chosen if conversation.id in self._asks]

    def _written(self, seed: int, number: int, arguments: object) -> list[Conversation]:
        """So many conversations of the miniature world."""
        assert isinstance(arguments, dict)
        data = twin_table(self.card, self.split, seed, number, arguments)
        return conversations(self.card, data, asked=self.settings.ask == "questions")[0]

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
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
            conversation, asks = queue.pop(), dict[int, list[Ask]]()
            for ask in self._of(conversation):
                asks.setdefault(ask.at.count, []).append(ask)
            yield self.split, _in_order(self._observes(conversation), asks)

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
            yield from (
                conversation.id,
                *conversation.texts(),
                *(text for pair in conversation.questions for text in pair),
            )


def _in_order(pieces: Sequence[Observe], asks: dict[int, list[Ask]]) -> Iterator[Step]:
    """The queries after so many pieces; what is behind the last query is not read."""
    for number in range(max(asks, default=-1) + 1):
        if number:
            yield pieces[number - 1]
        yield from asks.get(number, ())


def read(card: Card, request: Request) -> Sessions:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    card = check(card, settings)
    if request.source == "mini":
        data = twin_table(card, request.split, request.seed, settings.conversations or _OF_A_TWIN, arguments)
    else:
        data = session_table(card, request, settings.session)
    conversations_by_key, dropped = conversations(card, data, asked=settings.ask == "questions")
    wanted, chosen = settings.conversations, range(len(conversations_by_key))
    if wanted is not None and wanted < len(conversations_by_key):
        drawn = random.Random(f"conversations {request.seed}").sample(chosen, wanted)
        kept = [conversations_by_key[place] for place in sorted(drawn)]
    else:
        kept = conversations_by_key
    made = Sessions(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=data.label,
        data_notes=data.notes,
        unused=dropped,
        found=conversations_by_key,
        chosen=kept,
    )
    if not made.n_asks:
        where = "the sessions of" if settings.steps is None else f"steps={','.join(map(str, settings.steps))} in"
        raise UserError(f"There is nothing to ask after {where} {data.where}.", "Change --task-set ask or steps.")
    return made
