"""What of a task card decides the answers and figures of a run, as a digest.

    content_digest(load_card("streamingqa"))    ->  "0b7a6c1d2e3f4a5b"

Everything that stands on a card counts, but for prose, for where rows lie (the digest of the rows that were read says
what they hold) and for what the options of a task say once it is resolved (a prompt by name, `documents` ...), which
are in a run's identity already. Of a reader that another package brings these count, too. A field that is at its
default does not stand in what is hashed, so that a new field with a default leaves every digest as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from ttabench.core.identity import text_of
from ttabench.core.types import Json
from ttabench.readers import READERS
from ttabench.readers.cards import Card
from ttabench.readers.description import fingerprint

Fields = Mapping[str, "bool | Fields"]
"""Fields of a card: True for one as a whole, "*" for every entry of a mapping."""
PROSE: Fields = {
    "title": True, "paper": True, "arxiv": True, "licence": True,
    "source": {"how": True}, "splits": {"*": {"note": True}},
    "parts": {"*": {"train": {"note": True}, "test": {"note": True}}},
}  # fmt: skip
_FILES: Fields = {"files": True, "whole": True, "hub": True, "years": True}
PLACES: Fields = {
    "source": {"hub": True, "folders": True, "articles": {"files": True, "folders": True, "holds": True}},
    "splits": {"*": _FILES},
    "profiles": {"*": {"folders": True}},
    "parts": {"*": {"hub": True, "folders": True, "sizes": True, "train": _FILES, "test": _FILES}},
}
RESOLVED: Fields = {
    "protocol": True,
    "quirks": True,
    "twin": {"protocol": True, "arguments": True},
    "prompt": {"chat": True},
}


def content_digest(card: Card) -> str:
    """16 hexadecimal digits that change with everything on a card that can change an answer or a figure."""
    return fingerprint(text_of(content(card)))


def content(card: Card) -> dict[str, Json]:
    """Parts of a card that decide answers, as JSON; empty ones are left out."""
    card_fields = card.model_dump(mode="json", exclude_defaults=True)
    for fields in (PROSE, PLACES, *([RESOLVED] if card.reader in READERS else [])):
        card_fields = without(card_fields, fields)
    return _pruned(card_fields)


def without(values: Mapping[str, Json], fields: Fields) -> dict[str, Json]:
    """A card as JSON without some of its fields."""
    left = {key: fields.get(key, fields.get("*", {})) for key in values}
    kept = {key: inner for key, inner in left.items() if not isinstance(inner, bool)}
    return {
        key: without(values[key], inner) if isinstance(values[key], Mapping) else values[key]
        for key, inner in kept.items()
    }


def _pruned(values: Mapping[str, Json]) -> dict[str, Json]:
    """Without mappings that hold nothing."""
    kept = {key: _pruned(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value != {}}
