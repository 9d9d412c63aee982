"""What a record says of a task: the same fields whatever its reader, and a digest of every text used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ttabench.readers import Task
from ttabench.types import Episode, Json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ttabench.readers.cards import Scalar
    from ttabench.readers.tokens import Tokens


class Bound(Task, Protocol):
    """A task bound to its data, with what its reader resolved."""

    @property
    def limit(self) -> int | None:
        """Most questions asked for."""
        ...

    @property
    def settings(self) -> BaseModel:
        """The protocol in use."""
        ...

    @property
    def arguments(self) -> Mapping[str, Scalar]:
        """What the generator of a mini source was given."""
        ...


class Counted:
    """Counts of a task whose episodes are cheap to make."""

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


def describe(task: Bound, counts: Mapping[str, Json], texts: Sequence[str]) -> dict[str, Json]:
    """A task as JSON.

    Args:
        task: with its data.
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
