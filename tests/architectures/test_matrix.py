"""A fixed share of the architectures; all of them by `nox -s architectures`."""

from __future__ import annotations

import pytest

from tests.architectures.matrix import PAGE, bad, row, share

PARTS = 31
"""The tests run every 31st architecture."""


@pytest.mark.parametrize("kind", share(0, PARTS))
def test_every_method_is_right_or_refused(kind: str) -> None:
    assert not bad({kind: row(kind)})


@pytest.mark.parametrize(
    "kind", ["gemma2", "gpt_oss", "mistral", "cohere", "glm", "mamba", "bloom"]
)
def test_kinds_of_fault(kind: str) -> None:
    """A head of its own, sinks, a sliding window, a scale, neighbours that rotate, no cache, distances in slots."""
    found = row(kind)
    assert not bad({kind: found})
    assert found["none"] == "right"
    refused = {name for name, said in found.items() if said.startswith("refused")}
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
