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

from ttabench.core.digests import canonical_json
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.readers.base import Task, fingerprint
from ttabench.readers.cards import Card, load_card
from ttabench.readers.formats import format_reasons
from ttabench.readers.sources import READERS, Request, load_reader, origin
from ttabench.stats.metrics import check_metric_modes, metric

__all__ = ["READERS", "Task", "content_digest", "load", "origin"]


def load(
    card: Card | str,
    *,
    source: str = "mini",
    split: str = "test",
    seed: int = 0,
    limit: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Task[Any]:
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
    resolved_card = load_card(card) if isinstance(card, str) else card
    read = load_reader(resolved_card.reader)
    if split not in resolved_card.splits:
        raise UnknownName(f"split of task {resolved_card.name}", split, list(resolved_card.splits))
    request = Request(
        source=str(source), split=split, seed=seed, limit=limit, options=dict(options or {})
    )
    task: Task[Any] = read(resolved_card, request)
    query = next((query for episode in task.episodes() for query in episode.queries()), None)
    if query is None:
        why = f" ({format_reasons(task.dropped)})" if task.dropped else ""
        hint = f"Change --task-set of {resolved_card.name}" + (
            f", or give more than --limit {limit}." if limit else "."
        )
        raise UserError(f"There is nothing to ask of {task.source}{why}.", hint)
    check_metric_modes(resolved_card.name, map(metric, task.card.metrics), query.mode)
    return task


_SPLIT_LOCATION_FIELDS = {"files", "whole", "hub", "note"}
EXCLUDED_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("title", "paper", "arxiv", "licence"), True),
    "source": {"how": True, "hub": True, "folders": True, "articles": {"files"}},
    "splits": {"__all__": _SPLIT_LOCATION_FIELDS},
    "profiles": {"__all__": {"folders"}},
    "parts": {
        "__all__": {
            "hub": True,
            "folders": True,
            "train": _SPLIT_LOCATION_FIELDS,
            "test": _SPLIT_LOCATION_FIELDS,
        }
    },
}
"""Prose and places, as pydantic leaves fields out."""
RESOLVED_FIELDS: dict[str, Any] = {
    "protocol": True,
    "twin": {"protocol", "arguments"},
    "prompt": {"chat"},
}


def content_digest(card: Card) -> str:
    """16 hexadecimal digits that change with everything on a card that can change an answer or a figure.

    That is all but prose, where rows lie (their own digest says what they hold) and what the options of a task say once
    it is resolved, which are in a run's identity already; of a reader of another package these count, too. A field at
    its default is not hashed, so that a new one leaves every digest as it was.
    """
    excluded = EXCLUDED_FIELDS | (RESOLVED_FIELDS if card.reader in READERS else {})
    return fingerprint(
        canonical_json(
            _drop_empty(card.model_dump(mode="json", exclude_defaults=True, exclude=excluded))
        )
    )


def _drop_empty(values: Mapping[str, Json]) -> dict[str, Json]:
    """Without mappings that hold nothing."""
    kept = {
        key: _drop_empty(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
    return {key: value for key, value in kept.items() if value != {}}
