"""What every task bound to its data has: the base of all readers.

class MyTask(Bound[MySettings]):              settings that `resolve` gave
    def episodes(self, tokens=None): ...      what is read and asked
    def counts(self): ...                     {"documents": 16, "questions": 48}
    def texts(self): ...                      all that is shown, asked or compared with, for the digest of a record
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from ttabench.core.errors import UserError
from ttabench.core.types import Episode, Json, Step
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.description import described, fingerprint
from ttabench.readers.protocol_options import ProtocolSettings
from ttabench.readers.sources import Request
from ttabench.readers.tokens import Tokens

RowT = TypeVar("RowT")

SettingsT = TypeVar("SettingsT", bound=ProtocolSettings)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Size of the episodes that training asks for."""

    draws: random.Random
    documents: int
    """Observations an episode."""
    questions: int
    """Queries about each."""
    tokens: Tokens | None
    """The base model, for protocols that cut by tokens."""

    def split(self, pool: Sequence[RowT]) -> tuple[Sequence[RowT], Sequence[RowT]]:
        """(rows to show, other rows to ask), drawn from a pool; a smaller one gives fewer to show."""
        rows = self.draws.sample(pool, min(len(pool), self.documents + self.questions))
        border = max(0, len(rows) - self.questions)
        return rows[:border], rows[border:]


@dataclass(frozen=True, kw_only=True)
class Bound(Generic[SettingsT]):
    """A card bound to its data, with what its reader resolved: what all implementations of `readers.Task` share.

    A reader gives `episodes`, `counts`, `texts`, `training_steps` where methods train on it, and `others` with
    `describe_others` where its sources have other contexts.
    """

    card: Card
    request: Request
    settings: SettingsT
    """The protocol in use."""
    arguments: Mapping[str, Scalar]
    """Arguments of the generator of a mini source; empty for real data."""
    source: str
    """See `readers.Task`."""
    data_notes: tuple[str, ...] = ()
    """Notes that reading the data gave."""
    unused: Mapping[str, int] = field(default_factory=dict)
    """Rows of the source that were not used, by reason."""

    @property
    def split(self) -> str:
        """See `readers.Task`."""
        return self.request.split

    @property
    def seed(self) -> int:
        """See `readers.Task`."""
        return self.request.seed

    @property
    def limit(self) -> int | None:
        """Most questions asked for."""
        return self.request.limit

    @property
    def mini(self) -> bool:
        """Whether the rows are of the miniature world."""
        return self.source == "mini"

    @property
    def dropped(self) -> Mapping[str, int]:
        """See `readers.Task`."""
        return self.unused

    @property
    def notes(self) -> tuple[str, ...]:
        """See `readers.Task`: what differs from what a reader of the figures would assume."""
        sentences = [*self.data_notes, *self.remarks(), *self._unusable()]
        if self.settings.paper_quirks:
            sentences.append(f"paper_quirks: {dict(self.card.quirks)}")
        if "@unpinned" in self.source:
            sentences.append("the hub data set is not pinned to a revision")
        return tuple(sentences)

    def _unusable(self) -> list[str]:
        """How many rows of the files cannot be used, and why; the miniature world has no files."""
        count = sum(self.unused.values())
        if self.mini or not count:
            return []
        counted = [f"{reason} ({rows:,})" for reason, rows in self.unused.items()]
        reasons = ", ".join(counted) if len(counted) > 1 else next(iter(self.unused))
        rows_were = "row of {} was" if count == 1 else "rows of {} were"
        return [f"{count:,} {rows_were.format(self.source.partition(':')[2])} left out: {reasons}"]

    def remarks(self) -> list[str]:
        """Notes of this reader."""
        return []

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """See `readers.Task`."""
        raise NotImplementedError

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:  # noqa: ARG002  # what readers take
        """See `readers.Task`."""
        raise UserError(f"The task {self.card.name} has no other contexts.", "Leave --swap-state out.")

    def describe_others(self) -> dict[str, Json]:
        """See `readers.Task`."""
        return described(self.others(), [])

    @cached_property
    def n_observes(self) -> int:
        """Observations over all episodes."""
        return sum(len(episode.observes()) for episode in self.episodes())

    @cached_property
    def n_asks(self) -> int:
        """Queries over all episodes."""
        return sum(len(episode.asks()) for episode in self.episodes())

    def training(
        self, seed: int, documents: int, questions: int = 1, tokens: Tokens | None = None
    ) -> Iterator[Episode]:
        """See `readers.Task`."""
        assert min(documents, questions) > 0, f"{documents} documents with {questions} questions make no episode"
        draws = random.Random(f"training {self.drawn_by} {seed}")
        drawn = self.training_steps(Training(draws=draws, documents=documents, questions=questions, tokens=tokens))
        for number, (place, steps) in enumerate(drawn):
            yield Episode(key=f"{self.card.name}/{place}/training{seed}.{number}", steps=tuple(steps))

    @property
    def drawn_by(self) -> str:
        """Text that the draws of training depend on beside their seed."""
        return f"{self.card.name} {self.split}"

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterable[Step]]]:
        """(where it is from, its steps) of each episode of `training`, endlessly."""
        raise NotImplementedError

    def counts(self) -> dict[str, Json]:
        """How much of what it has, in the words of its reader."""
        raise NotImplementedError

    def texts(self) -> Iterable[str]:
        """Everything shown, asked or compared with, in order; the digest of a record changes with any of it."""
        raise NotImplementedError

    def describe(self) -> dict[str, Json]:
        """See `readers.Task`."""
        card = self.card
        return {
            "task": card.name,
            "reader": card.reader,
            "title": card.title,
            "arxiv": card.arxiv,
            "licence": card.licence,
            "source": self.source,
            "split": self.split,
            "seed": self.seed,
            "limit": self.limit,
            "protocol": self.settings.model_dump(mode="json"),
            "arguments": dict(self.arguments),
            **self.counts(),
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
            "digest": fingerprint(*self.texts()),
        }


def shares(limit: int | None, count: int) -> list[int | None]:
    """A limit shared out evenly over so many sub-tasks or texts; None for no limit."""
    if limit is None:
        return [None] * count
    return [limit * (i + 1) // count - limit * i // count for i in range(count)]


def spread(rows: Sequence[RowT], share: int | None) -> Sequence[RowT]:
    """So many of the rows, evenly spaced; all of them for None."""
    if share is None or share >= len(rows):
        return rows
    return tuple(rows[number * len(rows) // share] for number in range(share))
