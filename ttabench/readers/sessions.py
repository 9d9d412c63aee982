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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Score, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound, Training, behind, drawn, in_order, other_seeds, spread
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenCount, resolve
from ttabench.readers.session_files import Conversation, Session, conversations, session_table, transcript
from ttabench.readers.sources import Request, twin_table
from ttabench.readers.tokens import Tokens
from ttabench.stats.metrics import check_judges, metric

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
        """The next conversation, of other speakers and other texts; in the miniature world about nobody of the own.

        Where turns are read, the next with as many to read, or else the one with most.
        """
        known = self._told(own, own.sessions)
        wanted = max(1, len(self._read(own))) if self.settings.ask == "turns" else 1
        shorter = []
        for other in self._candidates(own):
            pieces = self._read(other)
            if pieces and known.isdisjoint(self._told(other, pieces)):
                if len(pieces) >= wanted:
                    return other
                shorter.append(other)
        if not shorter:
            raise self.no_other()
        return max(shorter, key=lambda one: len(self._read(one)))

    def _told(self, conversation: Conversation, read_: Sequence[Session]) -> set[str]:
        """What two conversations must not share: in the miniature world the people that they name, too."""
        people = {name for text in conversation.texts() for name in names_in(text)} if self.mini else set()
        return {conversation.published, *map(transcript, read_), *people}

    def _candidates(self, own: Conversation) -> Iterator[Conversation]:
        yield from behind(self.found, own)
        for seed in other_seeds(self.seed) if self.mini else ():
            yield from self._written(seed, 4, self.arguments)

    def _asked(self) -> list[Conversation]:
        return [conversation for conversation in self.chosen if conversation.id in self._asks]

    def _written(self, seed: int, number: int, arguments: Mapping[str, Any]) -> list[Conversation]:
        """So many conversations of the miniature world."""
        data = twin_table(self.card, self.split, seed, number, arguments)
        return conversations(self.card, data, asked=self.settings.ask == "questions")[0]

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
