"""Notes where a figure would mislead: nothing was evicted, rows asked several times, few queries, foreign texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import fake_kvpress
from tests.conftest import Command
from tests.tiny import tiny_llama
from ttabench.core.types import Answer, Ask, At, Observe
from ttabench.lm.model import LM, load
from ttabench.methods.base import BaseMethod
from ttabench.methods.registry import find
from ttabench.methods.settings import settings_of
from ttabench.readers import load as load_task
from ttabench.readers.cards import names
from ttabench.records.samples import Sample
from ttabench.run.caveats import count_caveats, fertility_caveats

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


def made(lm: LM, name: str, changes: dict[str, Any]) -> BaseMethod[Any]:
    spec = find(name.split()[0])
    method: BaseMethod[Any] = spec.load()(lm, settings_of(spec, changes))
    return method


@pytest.mark.parametrize("name", AT_THE_BORDER)
def test_a_method_that_evicts_knows_when_it_had_no_need(lm: LM, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvpress.installed(monkeypatch)
    changes, border = AT_THE_BORDER[name]
    for less in (0, 1):
        method = made(lm, name, {**changes, border: changes[border] - less})
        state = method.adapt(method.begin(1), [[Observe(text=WORDS)]])
        assert state.meta["tokens_read"] == [TOKENS]
        prefix = method.patch(state, []).prefix
        assert prefix is not None
        assert prefix.keys_LBHPD[0].shape[2] == HELD - less
        assert method.evicts_nothing(TOKENS) == (less == 0)


def sample(key: str, step: int, episode: str = "e") -> Sample:
    ask = Ask(prompt="Who?", key=key, at=At(step))
    return Sample(episode=episode, ask=ask, answer=Answer(prediction="x"), metrics={}, context_tokens=1, ask_ms=1.0)


def test_a_row_asked_at_several_places_counts_once() -> None:
    answers = [sample(f"{row}@{step}", step) for row in "abcdefghijkl" for step in (1, 2, 4)]
    (note,) = count_caveats(answers)
    assert note.endswith("n counts them all: 36 answers to 12 rows")
    repeated, few = count_caveats(answers[:6])
    assert repeated.endswith("6 answers to 2 rows")
    assert few == "n = 2: figures of so few queries say little"
    assert count_caveats([sample("q@1", 0, str(number)) for number in range(10)]) == [], "an address is no place"


def notes_of(ttabench: Command, *words: object) -> list[str]:
    ran = ttabench("eval", *words, "--json")
    (record,) = ran.json()["runs"]
    again = ttabench("eval", *words, "--json").json()["runs"][0]
    assert again["notes"] == record["notes"], "what is stored is what was said"
    found: list[str] = record["notes"]
    return found


def test_a_run_says_what_would_mislead(ttabench: Command, tmp_path: Path) -> None:
    words = ("--task", "metaicl", "--limit", 8, "--method", "snapkv", "--set", "budget=4000", "--out", tmp_path)
    evicted, repeated, few = notes_of(ttabench, *words)
    assert "evicted nothing" in evicted
    assert repeated.endswith("5 answers to 1 row")
    assert few.startswith("n = 1:")
    assert notes_of(ttabench, "--task", "streamingqa", "--method", "icl", "--out", tmp_path) == []
    shown = ttabench("eval", *words, "--force").err
    assert all(note in shown for note in (evicted, repeated, few))


ENGLISH = "The library opens at nine. It was founded by Maria Keller in 1921, who also wrote its rules."
OTHERS = ("Die Bibliothek öffnet um neun Uhr und schließt um sechs.", "Библиотека открывается в девять часов утра.",
          "La bibliothèque ouvre à neuf heures et ferme à midi.")  # fmt: skip


@pytest.fixture(scope="module")
def nano() -> LM:
    return load("nano", device="cpu")


@pytest.mark.parametrize("task", names())
def test_nano_was_made_for_its_world(nano: LM, task: str) -> None:
    episode = next(iter(load_task(task).episodes()))
    texts = [piece.text for piece in episode.observes()] + [ask.question_text for ask in episode.asks()]
    assert fertility_caveats(nano, texts) == []


@pytest.mark.parametrize("text", [ENGLISH, *OTHERS])
def test_and_for_no_other_language(nano: LM, text: str) -> None:
    (note,) = fertility_caveats(nano, [text])
    assert note.startswith("nano hardly knows this kind of text (")
    assert note.endswith("; use --model smollm2-135m-qa for English")


@pytest.mark.english
def test_smollm2_was_made_for_english_alone(smollm2: LM) -> None:
    assert fertility_caveats(smollm2, [ENGLISH]) == []
    assert all(fertility_caveats(smollm2, [text]) for text in OTHERS)
