"""Dataset readers: turn a task card and a source of rows into episodes. One module per task shape.

    task = load("streamingqa", source="mini", split="test", seed=0, options={"documents": "16"})
    for episode in task.episodes():
        ...

Other packages add readers through the entry-point group `ttabench.readers`. Wrong data, cards or
options raise a `UserError` of one line: what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttabench.core.digests import canonical_json
from ttabench.core.errors import UserError, require_known
from ttabench.core.types import Json
from ttabench.readers.base import Task, fingerprint
from ttabench.readers.cards import Card, load_card
from ttabench.readers.formats import format_reasons
from ttabench.readers.sources import READERS, Request
from ttabench.stats.metrics import check_metric_modes, metric

__all__ = ["READERS", "Task", "content_digest", "load"]


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
        card: a card, or a name or path that `cards.load_card` takes.
        source: "mini", "hub", or a file or folder in any published layout.
        split: a split of the card ("test", "validation", "train", ...).
        seed: seed of the stream's order, and of the rows of a mini source.
        limit: maximum number of questions, evenly spaced over the stream and divided evenly among
            sub-tasks. All documents are still read.
        options: protocol settings, and arguments of the mini generator, as text ("16", "true") or
            typed values.

    Raises:
        UserError: a name, path, option or row is wrong.
    """
    resolved_card = load_card(card) if isinstance(card, str) else card
    read = READERS.find(resolved_card.reader)
    require_known(f"split of task {resolved_card.name}", split, resolved_card.splits)
    request = Request(
        source=str(source), split=split, seed=seed, limit=limit, options=dict(options or {})
    )
    task: Task[Any] = read(resolved_card, request)
    query = next((query for episode in task.episodes() for query in episode.queries()), None)
    if query is None:
        why = f" ({format_reasons(task.dropped)})" if task.dropped else ""
        hint = f"Change --task-set of {resolved_card.name}" + (
            f", or set --limit above {limit}." if limit else "."
        )
        raise UserError(f"{task.source} has no question for this task{why}.", hint)
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
"""Descriptions and data locations, in the form of pydantic's `exclude`."""
RESOLVED_FIELDS: dict[str, Any] = {
    "protocol": True,
    "twin": {"protocol", "arguments"},
    "prompt": {"chat"},
}
"""Fields with resolved values in the run id."""


def content_digest(card: Card) -> str:
    """Digest a card: 16 hexadecimal digits that change with every field that can change a result.

    Excluded are descriptions, data locations (rows have their own digest) and, for built-in
    readers, options that are in the run id after they are resolved. Fields at their default are not
    hashed, so a new field leaves every digest as it was.
    """
    excluded = EXCLUDED_FIELDS | (RESOLVED_FIELDS if card.reader in READERS else {})
    return fingerprint(
        canonical_json(
            _drop_empty(card.model_dump(mode="json", exclude_defaults=True, exclude=excluded))
        )
    )


def _drop_empty(values: Mapping[str, Json]) -> dict[str, Json]:
    kept = {
        key: _drop_empty(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
    return {key: value for key, value in kept.items() if value != {}}
