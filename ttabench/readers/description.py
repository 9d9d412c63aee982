"""What a record says of a task: the same fields whatever its reader, and a digest of every text used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ttabench.readers import Task
from ttabench.types import Json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ttabench.readers.cards import Scalar


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
