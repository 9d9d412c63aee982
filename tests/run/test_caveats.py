"""Notes where a figure would mislead: nothing was evicted, few queries, texts that nano does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import fake_kvpress
from tests.conftest import Command
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core.types import Chunk
from ttabench.lm.model import LM, load
from ttabench.methods.registry import find_method
from ttabench.methods.settings import build_settings
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
def test_a_method_that_evicts_knows_when_it_had_no_need(
    lm: LM, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kvpress.installed(monkeypatch)
    changes, border = AT_THE_BORDER[name]
    spec = find_method(name.split()[0])
    for less in (0, 1):
        method = spec.load()(lm, build_settings(spec, {**changes, border: changes[border] - less}))
        state = method.adapt(method.begin(1), [[Chunk(text=WORDS)]])
        assert state.meta["tokens_read"] == [TOKENS]
        prefix = method.patch(state, []).prefix
        assert prefix is not None
        assert prefix.keys_LBHPD[0].shape[2] == HELD - less
        assert method.evicts_nothing(TOKENS) == (less == 0)


def test_a_run_reports_what_would_mislead(ttabench: Command, tmp_path: Path) -> None:
    words = f"--task metaicl --limit 8 --method snapkv --set budget=4000 --out {tmp_path}".split()
    (record,) = ttabench("eval", *words, "--json").json()["runs"]
    evicted, few = record["notes"]
    assert "evicted nothing" in evicted
    assert few.startswith("n = 5:")
    assert ttabench("eval", *words, "--json").json()["runs"][0]["notes"] == record["notes"], (
        "what is stored was said"
    )
    shown = ttabench("eval", *words, "--force").err
    assert evicted in shown
    assert few in shown
    plain = ttabench(f"eval --task streamingqa --method icl --out {tmp_path} --json")
    assert plain.json()["runs"][0]["notes"] == []


def test_what_auto_came_to_is_recorded(ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    """Llama's keys can be moved, GPT-2's cannot; of GPT-2 a folder asks for sampling, too."""
    gpt2 = tiny_gpt2()
    gpt2.model.generation_config.update(repetition_penalty=1.3, do_sample=True, top_p=0.9)
    gpt2.model.save_pretrained(tmp_path / "gpt2")
    gpt2.tokenizer.save_pretrained(tmp_path / "gpt2")
    asked = (
        f"--task streamingqa --source mini --task-set documents=2 --out {tmp_path} --json".split()
    )
    asked += ("--set", "recent=64", "--set", "n_sink=1", "--device", "auto")
    notes = {}
    for model, positions in ((tiny_base, "cache"), (tmp_path / "gpt2", "original")):
        typed = ("eval", "--method", "window", "--model", model, *asked)
        for size, words in ((None, typed), (64, (*typed, "--batch-size", "auto"))):
            (record,) = ttabench(*words).json()["runs"]
            assert record["auto"].get("batch_size") == size
        assert record["auto"]["positions"] == positions
        assert {"device", "dtype", "bos"} <= record["auto"].keys()
        notes[positions] = " ".join(record["notes"])
    assert all(
        word in notes["original"]
        for word in ("positions=auto", "repetition_penalty=1.3", "top_p=0.9")
    )
    assert not any(word in notes["cache"] for word in ("positions", "generation_config"))
    both = (
        "eval",
        "--method",
        "rag+window",
        "--model",
        tiny_base,
        *asked[:-6],
        "--set",
        "rag_top=1",
        "--set",
        "window_recent=64",
    )
    assert ttabench(*both).json()["runs"][0]["auto"]["window_positions"] == "cache"


def test_only_nano_is_reported_to_know_its_world_alone(lm: LM) -> None:
    assert nano_caveats(lm) == []
    assert nano_caveats(load("nano", device="cpu")) != []
