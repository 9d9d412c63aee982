"""LaMP: entries of a user's profile are read one by one; after 1, 2, 4, 8 and 16 of them the user's query is asked.

    Observe('the category for the article: "a heron was seen near the road" is "politics"'), Ask(...), Observe(...), ...

One episode a user and one pass, so that every step asks the same users; which 16 entries are drawn, and in which order,
the seed says. A card has several sub-tasks (`--task-set task=movies`), each with options to choose from or answers to
write, and with metrics of its own. The protocol is that of CCM (arXiv 2312.03414), see `readers.lamp_protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Choose, Episode, Json, Observe, Step
from ttabench.readers.base import Bound, Training, spread
from ttabench.readers.breaks import blanks_in_front
from ttabench.readers.cards import Card, Profile
from ttabench.readers.control_contexts import with_pieces
from ttabench.readers.control_profiles import next_reads
from ttabench.readers.description import described
from ttabench.readers.lamp_files import Entry, User, twin_users, users
from ttabench.readers.lamp_protocol import Read, Settings, Words, fitted, prompt_of, short
from ttabench.readers.protocol_options import resolve
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Tokens, counted_by, estimate
from ttabench.stats.metrics import text_metric

JOINER = "\n"
"""Between a profile and the query."""


@dataclass(frozen=True, kw_only=True)
class Profiles(Bound[Settings]):
    """A `readers.Task` of users and their profiles."""

    users: Sequence[User]
    _held: list[tuple[Tokens | None, list[Read], dict[str, int]]] = field(
        init=False, default_factory=list, compare=False
    )
    """Of the tokenizer that was last asked for: whose tokens, what is read, what is left out."""

    @property
    def part(self) -> Profile:
        """The sub-task."""
        return self.card.profiles[self.settings.task]

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows and entries that were not used, by reason.

        By the tokens of the base model once it asked for the episodes; before, four characters count as a token.
        """
        if not self._held:
            self.reads(None)
        return {**self.unused, **self._held[0][2]}

    def reads(self, tokens: Tokens | None) -> list[Read]:
        """The users who are asked, under the limits on length."""
        if not self._held or (tokens is not None and self._held[0][0] is not tokens):
            self._held[:] = [(tokens, *self._fitted(self._chosen, tokens))]
        return self._held[0][1]

    def _fitted(self, some: Sequence[User], tokens: Tokens | None) -> tuple[list[Read], dict[str, int]]:
        prompt = self.card.prompt
        words = Words(joiner=prompt.joiner, delimiter=prompt.delimiter, template=prompt.templates["query"])
        return fitted(some, self.settings, words, counted_by(tokens), self.seed)

    @property
    def _chosen(self) -> Sequence[User]:
        """`limit` counts every step of every user."""
        return spread(self.users, None if self.limit is None else self.limit // len(set(self.settings.steps)))

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a user (see `readers.Task`).

        Raises:
            UserError: nobody is left under the limits on length.
        """
        if not self.reads(tokens):
            fault = f"The limits on length leave nothing to ask of {self.card.name} ({left_out(self.dropped)})."
            raise UserError(fault, "Raise max_entry_tokens, or lower least_kept.")
        for read_ in self.reads(tokens):
            yield Episode(key=self._key(read_.user), steps=tuple(blanks_in_front(self._steps(read_))))

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the profile of another user, of a twin one who reads of other topics."""
        for (other, _), episode in zip(self._next(tokens), self.episodes(tokens), strict=True):
            yield with_pieces(episode, [self._observe(entry) for entry in other.shown])

    def _next(self, tokens: Tokens | None) -> list[tuple[Read, bool]]:
        return next_reads(self, self.reads(tokens), lambda some: self._fitted(some, tokens)[0])

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        pairs = list(zip(self._next(None), self.reads(None), strict=True))
        fewer = sum(len(other.shown) < len(own.shown) for (other, _), own in pairs)
        alike = sum(not apart for (_, apart), _ in pairs)
        notes = [f"{fewer} of the other profiles are shorter than the own"] if fewer else []
        notes += [f"{alike} of the other profiles share entries or topics with the own"] if alike else []
        return described(self.others(), notes)

    def _key(self, user: User) -> str:
        world = f"/seed{self.seed}" if self.mini else ""
        return f"{self.card.name}/{self.settings.task}/{self.split}/{user.id}{world}"

    def _steps(self, read_of_user: Read) -> Iterator[Step]:
        for number in range(len(read_of_user.shown) + 1):
            if number:
                yield self._observe(read_of_user.shown[number - 1])
            for step, place in sorted(read_of_user.places.items()):
                if place == number:
                    yield self._ask(read_of_user.user, step, f"{read_of_user.user.id}@{step}")

    def _observe(self, entry: Entry) -> Observe:
        return Observe(text=entry.text, key=entry.id, joiner=self.card.prompt.joiner)

    def _ask(self, user: User, step: int, key: str, about: Entry | None = None) -> Ask:
        """The query of a user, or the same about an entry."""
        prompt = self.card.prompt
        text, answer = (about.about, about.answer) if about else (user.input, user.output)
        return Ask(
            prompt=prompt_of(user, prompt.templates["query"], text),
            key=key,
            want=Choose(
                options=tuple(prompt.delimiter + option for option in user.options),
                gold=user.options.index(answer),
                delimiter=prompt.delimiter,
            )
            if user.options
            else prompt.generated((answer,), self.settings.max_new_tokens),
            question=text,
            joiner=JOINER,
            subtask=self.settings.task,
            at=At(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """A user each: `documents` entries, then the query and `questions` - 1 others about entries that are not read.

        A mini source draws a new user for every episode. Where entries have no answers, the query is all that is asked.
        """
        for number in count():
            user = self._fresh(training) if self.mini else training.draws.choice(self.users)
            entries, held_out = training.split(short(user, self.settings, estimate))
            asks = [self._ask(user, len(entries), f"{user.id}@{number}.0")]
            others = [one for one in held_out if one.about and one.answer in (user.options or [one.answer])]
            for i, entry in enumerate(others[: training.questions - 1], start=1):
                asks.append(self._ask(user, len(entries), f"{user.id}@{number}.{i}", entry))
            yield self.split, blanks_in_front([*map(self._observe, entries), *asks])

    def _fresh(self, training: Training) -> User:
        arguments = {**self.arguments, "users": 1, "entries": training.documents + training.questions}
        place = (self.card.splits[self.split].twin, training.draws.getrandbits(48))
        return twin_users(self.card, self.part, place, arguments)[0]

    def counts(self) -> dict[str, Json]:
        """Users there are, and what is read and asked of those who are asked."""
        return {"users": len(self.users), "observed": self.n_observes, "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every text that may be shown or asked."""
        for user in self.users:
            yield from (user.id, user.instruction, user.input, user.output, *user.options)
            for entry in user.entries:
                yield from (entry.id, entry.text)


def left_out(counts: Mapping[str, int]) -> str:
    """Counts by reason, in words."""
    return ", ".join(f"{reason}: {number:,}" for reason, number in counts.items())


def read(card: Card, request: Request) -> Profiles:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if settings.task not in card.profiles:
        raise UnknownName(f"sub-task of {card.name}", settings.task, list(card.profiles))
    part, least = card.profiles[settings.task], len(set(settings.steps))
    for name in part.metrics if not part.options else ():
        text_metric(name)
    if request.limit is not None and request.limit < least:
        fault = f"A limit of {request.limit} questions is less than one user at each of {least} steps."
        raise UserError(fault, f"Give --limit {least} or more.")
    notes: tuple[str, ...] = ()
    dropped: dict[str, int] = {}
    if request.source == "mini":
        if settings.task != next(iter(card.profiles)):
            fault = f"The miniature world has no {settings.task}, it has {next(iter(card.profiles))} only."
            raise UserError(fault, f"Give the published files with --source DIR. {card.source.how}")
        users_read = twin_users(card, part, (card.splits[request.split].twin, request.seed), arguments)
        source = "mini"
    else:
        users_read, dropped, held = users(card, part, request)
        source, note = held.label, card.splits[request.split].note
        notes = (*((note,) if note else ()), *held.notes)
    made = Profiles(
        card=card.model_copy(update={"metrics": part.metrics, "main_metric": part.metrics[0], "chance": part.chance}),
        request=request,
        settings=settings,
        arguments=arguments,
        source=source,
        users=users_read,
        unused=dropped,
        data_notes=notes,
    )
    assert made.n_asks, "there are users, and each is asked"
    return made
