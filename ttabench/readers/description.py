"""What every task bound to its data has, and what a record says of it: a digest of every text used among it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from ttabench.core.types import Episode, Json
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.options import ProtocolSettings
from ttabench.readers.tokens import Tokens

SettingsT = TypeVar("SettingsT", bound=ProtocolSettings)


@dataclass(frozen=True, kw_only=True)
class Bound(Generic[SettingsT]):
    """A card bound to its data, with what its reader resolved: what all implementations of `readers.Task` share.

    Counts are those of the episodes, where these are cheap to make.
    """

    card: Card
    source: str
    split: str
    seed: int
    limit: int | None
    """Most questions asked for."""
    settings: SettingsT
    """The protocol in use."""
    arguments: Mapping[str, Scalar]
    """What the generator of a mini source was given; empty for real data."""
    data_notes: tuple[str, ...] = ()
    """What reading the data left to say."""

    @property
    def notes(self) -> tuple[str, ...]:
        """See `readers.Task`."""
        return self.data_notes

    @property
    def dropped(self) -> Mapping[str, int]:
        """See `readers.Task`."""
        return {}

    def episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """See `readers.Task`."""
        raise NotImplementedError

    @cached_property
    def n_observes(self) -> int:
        """Observations over all episodes."""
        return sum(len(episode.observes()) for episode in self.episodes())

    @cached_property
    def n_asks(self) -> int:
        """Queries over all episodes."""
        return sum(len(episode.asks()) for episode in self.episodes())


def fingerprint(*parts: str) -> str:
    """16 hex digits that identify texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:16]


def describe(task: Bound[Any], counts: Mapping[str, Json], texts: Sequence[str]) -> dict[str, Json]:
    """A task as JSON.

    Args:
        task: what is described.
        counts: how much of what it has, in the words of its reader.
        texts: everything shown, asked or compared with, in order; `digest` changes with any of it.
    """
    card = task.card
    return {
        "task": card.name,
        "reader": card.reader,
        "title": card.title,
        "arxiv": card.arxiv,
        "licence": card.licence,
        "source": task.source,
        "split": task.split,
        "seed": task.seed,
        "limit": task.limit,
        "protocol": task.settings.model_dump(mode="json"),
        "arguments": dict(task.arguments),
        **counts,
        "dropped": dict(task.dropped),
        "notes": list(task.notes),
        "digest": fingerprint(*texts),
    }
