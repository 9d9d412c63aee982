"""Notes where a figure would mislead: nothing was evicted, few queries, texts that nano does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import fake_kvpress
from tests.conftest import Command
from tests.tiny import tiny_llama
from ttabench.core.types import Observe
from ttabench.lm.model import LM, load
from ttabench.methods.registry import find
from ttabench.methods.settings import settings_of
from ttabench.run.recording import nano_caveats

WORDS = "Ada Voss lives in Port Ansel."
TOKENS = len(WORDS)
HELD = TOKENS + 1
"""With BOS: the tiny model has a token a byte."""
AT_THE_BORDER: dict[str, tuple[dict[str, Any], str]] = {
    "window": ({"n_sink": 4, "recent": HELD - 4}, "recent"),
    "window postprefill": ({"mode": "postprefill", "n_sink": 0, "recent": HELD}, "recent"),
    "snapkv": ({"budget": HELD, "window": 4}, "budget"),
    "random_slots": ({"budget": HELD}, "budget"),
    "kvpress:LastPress": ({"budget": HELD}, "budget"),
}
"""Settings that keep all of these words, and which of them keeps less when it is one less."""


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_llama()


@pytest.mark.parametrize("name", AT_THE_BORDER)
def test_a_method_that_evicts_knows_when_it_had_no_need(lm: LM, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvpress.installed(monkeypatch)
    changes, border = AT_THE_BORDER[name]
    spec = find(name.split()[0])
    for less in (0, 1):
        method = spec.load()(lm, settings_of(spec, {**changes, border: changes[border] - less}))
        state = method.adapt(method.begin(1), [[Observe(text=WORDS)]])
        assert state.meta["tokens_read"] == [TOKENS]
        prefix = method.patch(state, []).prefix
        assert prefix is not None
        assert prefix.keys_LBHPD[0].shape[2] == HELD - less
        assert method.evicts_nothing(TOKENS) == (less == 0)


def test_a_run_says_what_would_mislead(ttabench: Command, tmp_path: Path) -> None:
    words = ("--task", "metaicl", "--limit", 8, "--method", "snapkv", "--set", "budget=4000", "--out", tmp_path)
    (record,) = ttabench("eval", *words, "--json").json()["runs"]
    evicted, few = record["notes"]
    assert "evicted nothing" in evicted
    assert few.startswith("n = 5:")
    assert ttabench("eval", *words, "--json").json()["runs"][0]["notes"] == record["notes"], "what is stored was said"
    shown = ttabench("eval", *words, "--force").err
    assert evicted in shown
    assert few in shown
    plain = ttabench("eval", "--task", "streamingqa", "--method", "icl", "--out", tmp_path, "--json")
    assert plain.json()["runs"][0]["notes"] == []


def test_only_nano_is_said_to_know_its_world_alone(lm: LM) -> None:
    assert nano_caveats(lm) == []
    assert nano_caveats(load("nano", device="cpu")) != []
