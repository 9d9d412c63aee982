"""The card of nano: every stage is told, and figures are of the worlds that were asked for."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from results.nano_recipe.card import card
from results.nano_recipe.far import FAR
from results.nano_recipe.figures import QUESTIONS, Worlds, answering
from results.nano_recipe.lessons import STAGES
from ttabench.lm.model import LM, load
from ttabench.mini import qa


@pytest.fixture(scope="module")
def lm() -> LM:
    return load("nano", device="cpu")


def test_the_card_tells_of_every_stage_and_which_worlds_were_measured() -> None:
    record = {
        "seed": 8, "tokens": 1_000, "steps": {"far": 7}, "seconds": 60.0, "peak_lr": 1e-3, "losses": {"far": 0.25},
        "stages": [*map(asdict, STAGES), asdict(FAR)],
    }  # fmt: skip
    measured = {name: {"streamingqa": {"0": 3.0, "165": 97.0}} for name in ("exact_match", "accuracy", "perplexity")}
    shape = {"first": 9000, "parameters": 1_180_800, "vocabulary": 3072, "positions": 8192}
    told = card(record, measured, shape)
    longest = max(*FAR.late, *FAR.rehearsed_lengths)
    assert f"far ({FAR.steps:,} steps, lengths to {longest}, positions to 8192)" in told
    assert all(f"{stage.name} (" in told for stage in STAGES)
    assert "seeds from 9000 on" in told
    assert "| streamingqa | 3.0 | 97.0 |" in told


def test_figures_are_of_the_worlds_asked_for(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def made(split: str, seed: int, documents: int = 64) -> list[dict[str, object]]:
        asked.append((split, seed))
        return qa.streamingqa(split, seed, documents)

    monkeypatch.setitem(QUESTIONS, "streamingqa", (made, QUESTIONS["streamingqa"][1]))
    assert 0 <= answering(lm, "streamingqa", 2, 2, Worlds("validation", 40)) <= 100
    assert {*asked} == {("validation", 40), ("validation", 41)}
