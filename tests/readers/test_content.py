"""What stands on a card counts, field by field, but for prose, places and what options say once they are resolved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from ttabench.readers import cards, content_digest
from ttabench.readers.cards import Card, cards_folder, load_card

ROWS = ("files", "whole", "hub", "note")
ASIDE = (
    "title",
    "paper",
    "arxiv",
    "licence",
    "source.how",
    "source.hub",
    "source.folders",
    "source.articles.files",
)
OPTIONS = ("protocol", "twin.protocol", "twin.arguments", "prompt.chat")
"""What is in an identity already, resolved."""


def leaves(value: Any, *place: str) -> Iterator[tuple[str, ...]]:
    """Ways to the fields that hold no mapping."""
    if not isinstance(value, dict):
        yield place
        return
    for key, inner in value.items():
        yield from leaves(inner, *place, key)


def edited(value: Any, *place: str) -> Any:
    """The same with another value there, whether that fits or not."""
    if not place:
        return "another"
    key, *rest = place
    if isinstance(value, BaseModel):
        return value.model_copy(update={key: edited(getattr(value, key), *rest)})
    return {**value, key: edited(value[key], *rest)}


def aside(place: tuple[str, ...]) -> bool:
    """Whether a field is prose, or says where rows lie."""
    if place[0] in ("splits", "parts", "profiles"):
        return place[-1] in ("folders", *ROWS) or "hub" in place
    return any(".".join(place).startswith(name) for name in ASIDE)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("name", ["streamingqa", "superglue", "lamp"])
def test_fields_count_but_for_prose_places_and_options(name: str) -> None:
    """Of a reader of another package options count, too."""
    card, raw = (
        load_card(name),
        yaml.safe_load((cards_folder() / f"{name}.yaml").read_text(encoding="utf-8")),
    )
    theirs = card.model_copy(update={"reader": "theirs"})
    for place in leaves(raw):
        option = any(".".join(place).startswith(name) for name in OPTIONS)
        if place != ("reader",):
            assert (content_digest(edited(card, *place)) != content_digest(card)) == (
                not aside(place) and not option
            )
            assert (content_digest(edited(theirs, *place)) != content_digest(theirs)) == (
                not aside(place)
            ), place


def test_a_field_at_its_default_is_as_if_it_were_not_there() -> None:
    class Wider(Card):
        pauses: int = 0
        more: cards.Source = cards.Source()

    card = load_card("streamingqa")
    before, values = content_digest(card), dict(card)
    assert content_digest(Wider.model_construct(**values)) == before
    assert content_digest(Wider.model_construct(**values, pauses=0)) == before
    assert content_digest(Wider.model_construct(**values, pauses=1)) != before
    assert (
        content_digest(Wider.model_construct(**values, more=cards.Source(answers="joined")))
        != before
    )
