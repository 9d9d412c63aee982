"""Dialogues through the loop: the words of one turn are scored behind all before it; figures by step; nano gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.readers.test_dialogue import put, spoken
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.core.types import Episode
from ttabench.cost.formula import NoSettings
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.scoring import token_logprobs
from ttabench.methods.base import BaseMethod
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.none.method import NoContext
from ttabench.methods.session import Session
from ttabench.readers import load

STEPS = (1, 2, 4, 8, 12)


@pytest.mark.parametrize("lm", [tiny_llama(), tiny_gpt2()], ids=["llama", "gpt2"])
def test_what_is_scored_is_the_next_turn_behind_the_text_of_all_before(lm: LM, tmp_path: Path) -> None:
    path = put(tmp_path, "test.txt", [spoken(7)])
    (episode,) = load("dailydialog", source=str(path), options={"steps": "1,2,4"}).episodes(lm)
    turns = [f"\nA: turn {number}." for number in range(7)]
    methods: list[tuple[BaseMethod[Any], bool]] = [
        (InContext(lm, InContextSettings()), True), (NoContext(lm, NoSettings()), False),
    ]  # fmt: skip
    for method, reads in methods:
        for place, found in zip((1, 2, 4), answers(method, episode), strict=True):
            prompt = lm.encode("".join(turns[:place] if reads else []) + f"{turns[place]}\nA:")
            target = lm.encode(f" turn {place + 1}.")
            (values,) = token_logprobs(lm, Patch(), [(prompt, target)])
            assert found[0] == pytest.approx(float(values.sum()), abs=1e-3)
            assert found[1] == len(target), "neither the speaker nor an end counts"


def answers(method: BaseMethod[Any], episode: Episode) -> list[tuple[float, int]]:
    session, read = Session(method.lm, method), 0
    found: list[tuple[float, int]] = []
    for ask in episode.asks():
        session.read(episode.observes()[read : ask.at.count])
        read = ask.at.count
        (answer,) = session.answer([ask])
        found.append((answer.logprobs[0], answer.tokens[0]))
    return found


def test_full_context_helps_nano_at_every_step_and_another_dialogue_does_not(ttabench: Command, tmp_path: Path) -> None:
    common = ("eval", "--task", "dailydialog", "--limit", 60, "--out", tmp_path, "--json")
    (none,) = ttabench(*common, "--method", "none").json()["runs"]
    own, other, _ = ttabench(*common, "--method", "icl", "--swap-state").json()["runs"]
    figures = [
        {row["step"]: row["value"] for row in run["rows"] if row["metric"] == "ppl"} for run in (none, own, other)
    ]
    assert set(figures[0]) == {None, *STEPS}
    for step in STEPS:
        assert figures[1][step] < 0.8 * figures[0][step], "at least 20 % of perplexity"
        assert figures[1][step] < 0.8 * figures[2][step], "memory of this dialogue"
    assert own["task"]["dialogues"] == 64
    assert {row["n"] for row in own["rows"] if row["step"]} == {12}
