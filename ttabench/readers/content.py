"""What of a task card decides the answers and figures of a run, as a digest.

    content_digest(load_card("streamingqa"))    ->  "0b7a6c1d2e3f4a5b"

Everything on a card counts, but for prose, for where rows lie (their own digest says what they hold) and for what the
options of a task say once it is resolved, which are in a run's identity already; of a reader of another package these
count, too. A field at its default is not hashed, so that a new one leaves every digest as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttabench.core.identity import text_of
from ttabench.core.types import Json
from ttabench.readers import READERS
from ttabench.readers.base import fingerprint
from ttabench.readers.cards import Card

_ROWS = {"files", "whole", "hub", "years", "note"}
ASIDE: dict[str, Any] = {
    **dict.fromkeys(("title", "paper", "arxiv", "licence"), True),
    "source": {"how": True, "hub": True, "folders": True, "articles": {"files", "folders", "holds"}},
    "splits": {"__all__": _ROWS},
    "profiles": {"__all__": {"folders"}},
    "parts": {"__all__": {"hub": True, "folders": True, "sizes": True, "train": _ROWS, "test": _ROWS}},
}
"""Prose and places, as pydantic leaves fields out."""
RESOLVED: dict[str, Any] = {
    "protocol": True,
    "quirks": True,
    "twin": {"protocol", "arguments"},
    "prompt": {"chat"},
}


def content_digest(card: Card) -> str:
    """16 hexadecimal digits that change with everything on a card that can change an answer or a figure."""
    aside = ASIDE | (RESOLVED if card.reader in READERS else {})
    return fingerprint(text_of(_pruned(card.model_dump(mode="json", exclude_defaults=True, exclude=aside))))


def _pruned(values: Mapping[str, Json]) -> dict[str, Json]:
    """Without mappings that hold nothing."""
    kept = {key: _pruned(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value != {}}
