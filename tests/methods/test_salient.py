"""Salient spans: what the rule finds, which tokens that marks, and what is said without spaCy."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.tiny import tiny_gpt2
from ttabench.core.errors import UserError
from ttabench.core.types import Observe
from ttabench.methods.online import SalientSettings
from ttabench.methods.online.salient import SalientSpans, entities_by_rule

RULE = SalientSettings(spans="rule", dropout=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("They met in Paris in 1999, three of them.", ["Paris", "1999"]),
        ("Ada Voss lives in Port Ansel.", ["Ada Voss", "Port Ansel"]),
        ("Trains stop. They go on to Tern Island.", ["Tern Island"]),
        ("It rained in 3021 and 99 towns.", []),
        ('He said: "Stop at O\'Hara Street."', ["O'Hara Street"]),
        ("", []),
    ],
)
def test_the_rule_finds_names_and_years(text: str, found: list[str]) -> None:
    assert [text[first:behind] for first, behind in entities_by_rule(text)] == found


def marked(method: SalientSpans, text: str) -> str:
    """The tokens (bytes) that weigh 1."""
    ids = method.lm.encode(text)
    weights = method.token_weights(Observe(text=text, key="d"), ids)
    assert set(weights.tolist()) <= {0.0, 1.0}
    return method.lm.decode([token for token, weight in zip(ids, weights.tolist(), strict=True) if weight])


def test_tokens_of_entities_weigh_one_and_blanks_nothing() -> None:
    method = SalientSpans(tiny_gpt2(), RULE)
    assert marked(method, "in Paris in 1999, three") == "Paris1999"
    assert marked(method, "in Zürich and Port Ansel") == "ZürichPortAnsel"


def test_tokens_of_a_larger_text_are_looked_at_as_they_are_written() -> None:
    method = SalientSpans(tiny_gpt2(), RULE)
    ids = method.lm.encode("so in Paris, too")
    weights = method.token_weights(Observe(text="in Paris", key="d7"), ids)
    assert method.lm.decode([token for token, weight in zip(ids, weights.tolist(), strict=True) if weight]) == "Paris"


def test_without_spacy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"spaCy, which is not installed\. pip install spacy .* or --set spans=rule"):
        SalientSpans(tiny_gpt2(), SalientSettings())


def test_spacys_entities_of_some_types_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Paris in 1999, three"

    def model(_: str) -> Any:
        found = [(0, 5, "GPE"), (9, 13, "DATE"), (15, 20, "CARDINAL")]
        return SimpleNamespace(ents=[SimpleNamespace(start_char=a, end_char=b, label_=kind) for a, b, kind in found])

    def load(name: str) -> Any:
        if name != "en_core_web_sm":
            raise OSError(name)
        return model

    fake = ModuleType("spacy")
    monkeypatch.setattr(fake, "load", load, raising=False)
    monkeypatch.setitem(sys.modules, "spacy", fake)
    assert marked(SalientSpans(tiny_gpt2(), SalientSettings()), text) == "Paris1999"
    with pytest.raises(UserError, match="spaCy has no model 'xx'"):
        SalientSpans(tiny_gpt2(), SalientSettings(spacy_model="xx"))
