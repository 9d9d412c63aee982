"""What stands on a card counts, field by field, but for prose, places and what options say once they are resolved."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ttabench.core.types import Json
from ttabench.readers import cards, content_digest
from ttabench.readers.cards import Card

CARD = yaml.safe_load("""
name: mine
reader: qa_stream
title: Mine
paper: A paper
arxiv: "2205.11388"
licence: MIT
source:
  hub: {path: a/b, config: c, revision: d}
  folders: [top]
  answers: joined
  articles: {files: [articles], key: [id], text: [text]}
  how: Write it.
columns: {question: [question, q]}
parts:
  rte:
    shape: labels
    hub: {path: e/f, config: g, revision: h}
    folders: [RTE]
    columns: {premise: [premise]}
    train: {files: [train], whole: [all], hub: train, rows: [1, 2], of: 3, twin: train, note: A note.}
    test: {files: [dev], whole: [all], hub: dev, rows: [1, 2], of: 3, twin: train, note: A note.}
    templates: {lm_eval: "{premise}"}
    options: ["True", "False"]
    labels: [yes_it_does, no_it_does_not]
profiles:
  news:
    folders: [LaMP_2]
    entry: "{text} is {category}"
    marker: "article:"
    text: text
    output: category
    options: [travel, sports]
    metrics: [acc]
    chance: 0.5
splits: {test: {files: [rows], whole: [all], hub: test, rows: [1, 2], of: 3, twin: train, note: A note.}}
prompt:
  templates: {plain: "{question}", other: "{question}?"}
  delimiter: "-"
  joiner: "+"
  examples: [["Who?", "Ada."], ["When?", "Now."]]
  chat: {prompt: plain, examples: 1, turns: false}
  stops: ["."]
  leads: ["A:"]
protocol: {prompt: plain}
quirks: {documents: 3}
metrics: [em, f1]
main_metric: em
chance: 0.5
unit: document
twin: {generator: "ttabench.mini.qa:streamingqa", protocol: {documents: 2}, arguments: {facts: 4}}
""")
"""Every field is there, and none at its default."""
SPLITS = ("splits.test", "parts.rte.train", "parts.rte.test")
FILES = ("files", "whole", "hub", "note")
ASIDE = ("title", "paper", "arxiv", "licence", "source.how", "source.hub", "source.folders", "source.articles.files",
         "profiles.news.folders",
         *(f"parts.rte.{name}" for name in ("hub", "folders")),
         *(f"{split}.{name}" for split in SPLITS for name in FILES))  # fmt: skip
"""Prose and places."""
OPTIONS = ("protocol", "quirks", "twin.protocol", "twin.arguments", "prompt.chat")
"""What is in an identity already, resolved."""
OTHERS = {
    "arxiv": "2205.11389", "source.answers": "literal", "parts.rte.shape": "copa", "unit": "book", "main_metric": "f1",
    "twin.generator": "ttabench.mini.qa:squad_seq", "prompt.templates.plain": "Q: {question}",
    "prompt.templates.other": "A: {question}", "prompt.chat.prompt": "other",
    **{f"{split}.twin": "validation" for split in SPLITS},
}  # fmt: skip
"""Other values where not every text will do."""


def leaves(value: Json, place: str = "") -> Iterator[str]:
    """Names of the fields that hold no mapping."""
    if not isinstance(value, dict):
        yield place
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{place}.{key}".lstrip("."))


def edited(place: str) -> Card:
    """The card with another value there."""
    card = copy.deepcopy(CARD)
    *way, last = place.split(".")
    inside = card
    for key in way:
        inside = inside[key]
    value = inside[last]
    if place == "metrics":
        other: Any = [*value, "f1_max"]
    elif place.endswith((".rows", ".years")):
        other = [0, value[1]]
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, list):
        other = value[:-1] if len(value) > 1 and place != "parts.rte.options" else [*value, "another"]
    else:
        other = OTHERS.get(place, f"{value}x" if isinstance(value, str) else value + 1)
    inside[last] = other
    return read(card)


def read(card: Json) -> Card:
    return Card.model_validate_json(json.dumps(card), strict=True)


def aside(place: str, names: tuple[str, ...]) -> bool:
    return any(place == name or place.startswith(f"{name}.") for name in names)


def test_fields_count_but_for_prose_places_and_options() -> None:
    """Of a reader of another package options count, too."""
    whole = read(CARD)
    theirs = content_digest(whole.model_copy(update={"reader": "theirs"}))
    for place in leaves(CARD):
        card = edited(place)
        assert card != whole
        if place == "prompt.chat.prompt":
            continue
        counts = not aside(place, (*ASIDE, *OPTIONS))
        assert (content_digest(card) != content_digest(whole)) == counts, place
        if aside(place, OPTIONS):
            assert content_digest(card.model_copy(update={"reader": "theirs"})) != theirs, place


def test_a_field_at_its_default_is_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wider(Card):
        pauses: int = 0
        more: cards.Source = cards.Source()

    before = content_digest(read(CARD))
    assert content_digest(Wider.model_validate_json(json.dumps(CARD))) == before
    assert content_digest(Wider.model_validate_json(json.dumps({**CARD, "pauses": 0}))) == before
    assert content_digest(Wider.model_validate_json(json.dumps({**CARD, "pauses": 1}))) != before
    assert content_digest(Wider.model_validate_json(json.dumps({**CARD, "more": {"answers": "joined"}}))) != before
