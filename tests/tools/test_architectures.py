"""A fixed share of the architectures. `nox -s architectures` runs all of them."""

from __future__ import annotations

import pytest

from tools.architectures import PAGE, evaluate_methods, failures
from tools.tiny_architectures import KINDS

EVERY = 31


@pytest.mark.parametrize("kind", KINDS[::EVERY])
def test_every_method_is_right_or_refused(kind: str) -> None:
    assert failures({kind: evaluate_methods(kind)}) == []


@pytest.mark.parametrize(
    "kind", ["gemma2", "gpt_oss", "mistral", "cohere", "glm", "mamba", "bloom"]
)
def test_architectures_with_special_attention(kind: str) -> None:
    """A scaled head, sinks, a sliding window, a scale, interleaved rotation, no cache, ALiBi."""
    results = evaluate_methods(kind)
    assert failures({kind: results}) == []
    assert results["none"] == "right"
    refused = {name for name, result in results.items() if result.startswith("refused")}
    evicting = {"window", "snapkv", "h2o", "kvzip"}
    few = {"mamba": {"icl", *evicting}}.get(
        kind, evicting if kind in ("gemma2", "gpt_oss", "bloom") else set()
    )
    assert refused - {"generative_adapter"} == few


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    count = int(text.partition(" are right under icl")[0].rpartition(" ")[2])
    assert count >= 70
    assert "wrong" not in text.partition("<!-- architectures -->")[2]
