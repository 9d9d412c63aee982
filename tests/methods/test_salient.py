"""Salient spans: what the rule finds, and which tokens that marks."""

from __future__ import annotations

import pytest

from tests.tiny import tiny_gpt2
from ttabench.core.types import Observe
from ttabench.methods.online import SalientSettings
from ttabench.methods.online.method import SalientSpans, entities_by_rule

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
