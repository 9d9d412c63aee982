"""LaMP: entries of a user's profile are read one by one; after 1, 2, 4, 8 and 16 of them the user's query is asked.

    Observe('the category for the article: "a heron was seen near the road" is "politics"'), Ask(...), Observe(...), ...

One episode a user and one pass, so that every step asks the same users; the seed draws the entries and their order. A
card has several sub-tasks (`--task-set task=movies`), each with metrics of its own. The protocol is that of CCM (arXiv
2312.03414, appendix D): entries of more than `max_entry_tokens` are left out, and users who keep less than nine tenths
of theirs; of the others as many as the last step wants are drawn, with replacement where there are fewer.

As published:

    LaMP_2/dev_questions.json     [{"id": "200", "input": "Which tag ...? ... description: A council bans sleep.",
                                    "profile": [{"id": "1000", "tag": "comedy", "description": "..."}, ...]}, ...]
    LaMP_2/dev_outputs.json       {"task": "LaMP_2", "golds": [{"id": "200", "output": "dystopia"}, ...]}
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Episode, Json, Observe, Step
from ttabench.mini.world import categories_in
from ttabench.readers.base import (
    Bound,
    Training,
    blanks_in_front,
    in_order,
    other_seeds,
    spread,
    told_apart,
    with_pieces,
)
from ttabench.readers.cards import Card, Profile, ProtocolSettings, Scalar
from ttabench.readers.formats import RawRow, brief, rows, text_of
from ttabench.readers.sources import Request, Table, generated, resolve, table, twin_rows, usable
from ttabench.readers.tokens import Count, StepCounts, TokenCount, TokenLimit, Tokens, counted_by, estimate, fitting

_FIELD = re.compile(r"\{(\w+)\}")
_ANOTHER = "It may be of another sub-task (--task-set task=NAME)."
JOINER = "\n"
"""Between a profile and the query."""
LEAST_KEPT = 0.9
"""Users of whose entries a smaller share is short enough are left out."""
WORLDS, OTHERS = 4, 64
"""Other seeds of the miniature world whose users are tried for another context, and users of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a profile."""

    id: str
    text: str
    about: str = ""
    """The query about it; empty where it could not be asked."""
    answer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user: a query and a profile."""

    id: str
    instruction: str
    input: str
    output: str
    options: tuple[str, ...]
    """Empty where the answer is written."""
    entries: tuple[Entry, ...]


def twin_users(card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]) -> list[User]:
    """Users of the miniature world that stands for a split, of the first sub-task."""
    questions, outputs = generated(card, split, seed, **arguments)
    golds = twin_rows(card, outputs["golds"]).rows
    return _users(next(iter(card.profiles.values())), twin_rows(card, questions), golds)


def users(card: Card, part: Profile, request: Request) -> tuple[list[User], Table]:
    """(users in file order, the table of their questions)."""
    folders = (*part.folders, *(f"{top}/{folder}" for top in card.source.folders for folder in part.folders))
    source = card.source.model_copy(update={"folders": folders})
    data = table(card.model_copy(update={"source": source}), request)
    golds = data.where.replace("questions", "outputs")
    if not Path(golds).is_file() or golds == data.where:
        hint = "Copy it there; the outputs of LaMP's own test rows are not published: ask the dev rows."
        raise UserError(f"{data.where} has no right answers beside it ({golds}).", hint)
    if request.split != "test":  # training rows and those that validate, one in ten, are of one file
        validates = request.split == "validation"
        kept = [row for number, row in enumerate(data.rows, 1) if (number % 10 == 0) == validates]
        data = replace(data, rows=kept)
    return _users(part, data, rows(Path(golds))), data


def _users(part: Profile, asked: Table, golds: Iterable[RawRow]) -> list[User]:
    outputs = usable(Table(rows=list(golds)), lambda row: (_cell(row, "id"), _cell(row, "output")))
    answers = dict(outputs)

    def user_of(raw: RawRow) -> User | str:
        key, query = _cell(raw, "id"), _cell(raw, "input")
        if (output := answers.pop(key, None)) is None:
            raise ValueError(f"the id {brief(key)} stands twice, or has no right answer in the file of outputs")
        head, marker, given = query.partition(part.marker)
        if not marker:
            raise UserError(f"{raw.place}: input {brief(query)} does not hold {part.marker!r}.", _ANOTHER)
        given_options: Any = raw.values.get("options", part.options)  # those of the miniature world have their own
        options = tuple(given_options)
        if options and output not in options:
            raise ValueError(f"output {brief(output)} is none of the options {brief(', '.join(options), 200)}")
        profile: Any = raw.values["profile"]
        entries = (_entry(part, RawRow(f"{raw.place} profile[{i}]", values), i) for i, values in enumerate(profile))
        text, quoted = given.strip(), ("", f'"{given.strip()}"')  # an entry may be the very thing that is asked about
        kept = tuple(one for one in entries if one.about != text and (one.about or one.text not in quoted))
        if not (kept and text and output):
            return "user without a profile, query or answer"
        return User(id=key, instruction=head + marker, input=text, output=output, options=options, entries=kept)

    return usable(asked, user_of)


def _entry(part: Profile, raw: RawRow, number: int) -> Entry:
    text = _FIELD.sub(lambda match: _cell(raw, match[1]), part.entry)
    about, answer = (_cell(raw, name) if name else "" for name in (part.text, part.output))
    return Entry(id=_cell(raw, "id") if "id" in raw.values else str(number), text=text, about=about, answer=answer)


def _cell(raw: RawRow, name: str) -> str:
    """A cell as text without blanks around it; scores may be numbers."""
    cell = raw.needed([name], _ANOTHER)
    return text_of(name, str(cell) if isinstance(cell, int) else cell).strip()


class Settings(ProtocolSettings):
    """The protocol part of a card of the reader `lamp`, and what `--task-set` may change."""

    task: str = "news"
    """The sub-task; one at a time, for they have metrics of their own."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Entries after which the query is asked."""
    max_entry_tokens: TokenLimit = 99
    """Longer entries are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Most tokens of the entries with the query and its longest answer; 0 for no limit."""
    max_new_tokens: TokenCount = 32
    """Of an answer that is written."""


class Read(NamedTuple):
    """A user as one is run."""

    user: User
    shown: Sequence[Entry]
    """In reading order."""
    places: Mapping[int, int]
    """After how many entries the query is asked, by step."""


@dataclass(frozen=True, kw_only=True)
class Profiles(Bound[Settings]):
    """A `readers.Task` of users and their profiles."""

    users: Sequence[User]

    def measured(self, tokens: Tokens | None) -> tuple[list[Read], dict[str, int]]:
        """(the users who are asked, how much is too long by reason); `limit` counts every step of every user."""
        share = None if self.limit is None else self.limit // len(set(self.settings.steps))
        return self._fitted(spread(self.users, share), counted_by(tokens))

    def _fitted(self, some: Sequence[User], size: Count) -> tuple[list[Read], dict[str, int]]:
        fits, dropped = [], Counter[str]()
        for user in some:
            kept = self._short(user, size)
            dropped["entry too long"] += len(user.entries) - len(kept)
            if not kept or len(kept) < LEAST_KEPT * len(user.entries):
                dropped["user with too many long entries"] += 1
                continue
            drawn, fit = self._drawn(kept, user), max(self.settings.steps)
            if most := self.settings.max_tokens:
                options = (size(self.card.prompt.delimiter + option) for option in user.options)
                answer = max(options, default=self.settings.max_new_tokens)
                sizes = (size(entry.text + self.card.prompt.joiner) for entry in drawn)
                fit = fitting(sizes, most, answer + size(self._prompt(user, user.input)))
            places = {step: min(step, fit) for step in self.settings.steps}
            dropped["query asked after fewer entries"] += sum(step != place for step, place in places.items())
            fits.append(Read(user, drawn[: max(places.values())], places))
        return fits, dict(+dropped)

    def _short(self, user: User, size: Count) -> list[Entry]:
        """The entries that are not longer than one may be."""
        most = self.settings.max_entry_tokens
        return [entry for entry in user.entries if not most or size(entry.text) <= most]

    def _drawn(self, entries: Sequence[Entry], user: User) -> list[Entry]:
        """As many as the last step wants, fewer the first of more; repeats have ids of their own."""
        source, wanted = random.Random(f"profile {user.id} {self.seed}"), max(self.settings.steps)
        if wanted <= len(entries):
            return source.sample(entries, len(entries))[:wanted]
        seen = Counter[str]()
        return [replace(entry, id=told_apart(entry.id, seen)) for entry in source.choices(entries, k=wanted)]

    def _prompt(self, user: User, text: str) -> str:
        """The query of a user about a text."""
        return user.instruction + self.card.prompt.templates["query"].replace("{question}", text)

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """One episode a user."""
        for one in self.fit(tokens):
            user = one.user
            asks = ((place, self._ask(user, step, f"{user.id}@{step}")) for step, place in sorted(one.places.items()))
            steps = in_order([self._observe(entry) for entry in one.shown], asks)
            yield Episode(key=self.key(user.id, self.settings.task), steps=tuple(blanks_in_front(steps)))

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the profile of the next user who is told nothing of the own, or else the next.

        A user of the miniature world has categories for topics: who reads of none of these is told nothing of them.
        """
        own: list[Read] = self.fit(tokens)
        every, apart = own, 1
        if self.mini:
            sizes, seeds = {**self.arguments, "users": OTHERS}, islice(other_seeds(self.seed), WORLDS)
            some = [user for seed in seeds for user in twin_users(self.card, self.split, seed, sizes)]
            every, apart = self._fitted(some, counted_by(tokens))[0], 0
        for place, (one, episode) in enumerate(zip(own, self.episodes(tokens), strict=True), start=apart):
            candidates = (every[number % len(every)] for number in range(place, place + len(every) - apart))
            other = self.apart(self._told(one), candidates, self._told, at_worst=True)
            yield with_pieces(episode, map(self._observe, other.shown))

    def _told(self, read_: Read) -> set[str]:
        """What two users must not share."""
        texts = {entry.text for entry in read_.shown}
        return categories_in([read_.user.input, *texts]) if self.mini else texts

    def _observe(self, entry: Entry) -> Observe:
        return Observe(text=entry.text, key=entry.id, joiner=self.card.prompt.joiner)

    def _ask(self, user: User, step: int, key: str, about: Entry | None = None) -> Ask:
        """The query of a user, or the same about an entry."""
        prompt = self.card.prompt
        text, answer = (about.about, about.answer) if about else (user.input, user.output)
        written = prompt.generated((answer,), self.settings.max_new_tokens)
        return Ask(
            prompt=self._prompt(user, text or user.input),
            key=key,
            want=prompt.chosen(user.options, answer) if user.options else written,
            question=text,
            joiner=JOINER,
            subtask=self.settings.task,
            at=At(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """A user each: `documents` entries, then the query and `questions` - 1 others about entries not read.

        A mini source draws a new user for every episode. Where entries have no answers, the query is all that is asked.
        """
        draws, one = training.draws, {**self.arguments, "users": 1, "entries": training.documents + training.questions}
        for number in count():
            if self.mini:
                (user,) = twin_users(self.card, self.split, draws.getrandbits(48), one)
            else:
                user = draws.choice(self.users)
            entries, held_out = training.split(self._short(user, estimate))
            asks = [self._ask(user, len(entries), f"{user.id}@{number}.0")]
            others = [one for one in held_out if one.about and one.answer in (user.options or [one.answer])]
            for i, entry in enumerate(others[: training.questions - 1], start=1):
                asks.append(self._ask(user, len(entries), f"{user.id}@{number}.{i}", entry))
            yield self.split, blanks_in_front([*map(self._observe, entries), *asks])

    def counts(self) -> dict[str, Json]:
        """Users there are, and what is read and asked of those who are asked."""
        return {"users": len(self.users), "observed": self.n_observes, "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every text that may be shown or asked."""
        for user in self.users:
            yield from (user.id, user.instruction, user.input, user.output, *user.options)
            for entry in user.entries:
                yield from (entry.id, entry.text)


def read(card: Card, request: Request) -> Profiles:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    known = list(card.profiles)[: 1 if request.source == "mini" else None]
    if settings.task not in known:
        raise UnknownName(f"sub-task of {card.name}", settings.task, known)
    part, data = card.profiles[settings.task], Table()
    if request.source == "mini":
        held = twin_users(card, request.split, request.seed, arguments)
    else:
        held, data = users(card, part, request)
    card = card.measured(*part.metrics, chance=part.chance)
    return Profiles(card=card, request=request, settings=settings, arguments=arguments, data=data, users=held)
