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

from ttabench.core.digests import text_of
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.readers.base import Bound, fingerprint
from ttabench.readers.cards import Card, load_card
from ttabench.readers.formats import reasons
from ttabench.readers.sources import READERS, Request, origin, reader_of
from ttabench.stats.metrics import check_judges, metric

__all__ = ["READERS", "Task", "content_digest", "load", "origin"]
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
    ask = next((ask for episode in task.episodes() for ask in episode.asks()), None)
    if ask is None:
        why = f" ({reasons(task.dropped)})" if task.dropped else ""
        hint = f"Change --task-set of {bound.name}" + (f", or give more than --limit {limit}." if limit else ".")
        raise UserError(f"There is nothing to ask of {task.source}{why}.", hint)
    check_judges(bound.name, map(metric, task.card.metrics), ask.mode)
    return task


_ROWS = {"files", "whole", "hub", "note"}
ASIDE: dict[str, Any] = {
    **dict.fromkeys(("title", "paper", "arxiv", "licence"), True),
    "source": {"how": True, "hub": True, "folders": True, "articles": {"files"}},
    "splits": {"__all__": _ROWS},
    "profiles": {"__all__": {"folders"}},
    "parts": {"__all__": {"hub": True, "folders": True, "train": _ROWS, "test": _ROWS}},
}
"""Prose and places, as pydantic leaves fields out."""
RESOLVED: dict[str, Any] = {"protocol": True, "twin": {"protocol", "arguments"}, "prompt": {"chat"}}


def content_digest(card: Card) -> str:
    """16 hexadecimal digits that change with everything on a card that can change an answer or a figure.

    That is all but prose, where rows lie (their own digest says what they hold) and what the options of a task say once
    it is resolved, which are in a run's identity already; of a reader of another package these count, too. A field at
    its default is not hashed, so that a new one leaves every digest as it was.
    """
    aside = ASIDE | (RESOLVED if card.reader in READERS else {})
    return fingerprint(text_of(_pruned(card.model_dump(mode="json", exclude_defaults=True, exclude=aside))))


def _pruned(values: Mapping[str, Json]) -> dict[str, Json]:
    """Without mappings that hold nothing."""
    kept = {key: _pruned(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value != {}}
