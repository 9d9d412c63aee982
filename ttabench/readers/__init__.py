"""Readers turn a task card and a source of rows into episodes; one module a shape of task.

    task = load("streamingqa", source="mini", split="test", seed=0, options={"documents": "16"})
    for episode in task.episodes():
        ...

Other packages offer readers through the entry-point group `ttabench.readers`. Whatever in these modules reads data,
cards or options raises a `UserError` of one line where they are wrong: what, where, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttabench.core.errors import UnknownName
from ttabench.readers.base import Bound
from ttabench.readers.cards import Card, load_card
from ttabench.readers.protocol_options import READERS, origin, reader_of
from ttabench.readers.sources import Request

__all__ = ["READERS", "Task", "load", "origin"]
Task = Bound[Any]
"""A task bound to a source, a split and a seed: what the runner and the trainer iterate over."""


def load(
    card: Card | str,
    *,
    source: str = "mini",
    split: str = "test",
    seed: int = 0,
    limit: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Task:
    """Bind a task to its data.

    Args:
        card: a card, or what `cards.load_card` takes.
        source: "mini", "hub", or a file or folder in any published layout.
        split: a split of the card ("test", "validation", "train", ...).
        seed: of the order of the stream, and of the rows of a mini source.
        limit: at most that many questions, evenly spaced over the stream, shared out evenly over sub-tasks; all
            documents are still read.
        options: protocol settings, and arguments of the mini generator; texts ("16", "true") or typed values.

    Raises:
        UserError: a name, path, option or row is wrong; one line that says where.
    """
    bound = load_card(card) if isinstance(card, str) else card
    read = reader_of(bound.reader)
    if split not in bound.splits:
        raise UnknownName(f"split of task {bound.name}", split, list(bound.splits))
    request = Request(source=str(source), split=split, seed=seed, limit=limit, options=dict(options or {}))
    task: Task = read(bound, request)
    return task
