"""Every method runs on every family of tasks; nano answers from what it has read; figures by step, piece, distance."""

from __future__ import annotations

import math
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
from ttabench.methods.registry import methods
from ttabench.methods.session import Session
from ttabench.readers import load

SMALL: dict[str, list[str]] = {
    "streamingqa": ["documents=2"],
    "superglue": ["shots=2"],
    "hellaswag": ["shots=2"],
    "metaicl": ["steps=2"],
    "lamp": ["users=1", "entries=2", "steps=2"],
    "msc": ["steps=1"],
    "dailydialog": ["steps=2"],
    "pg19": ["tokens=1k", "window=256", "stride=128", "books=1"],
    "recall": ["tokens=600", "books=1"],
    "shared_context": ["contexts=1", "people=2"],
    "ruler": ["length=400", "tasks=niah_single_1,qa_1"],
}
"""One task a reader, as short as its twin can be asked."""


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("method", methods())
def test_a_method_runs_on_a_task(ttabench: Command, tmp_path: Path, method: str, task: str) -> None:
    options = [word for option in SMALL[task] for word in ("--task-set", option)]
    ran = ttabench("eval", "--method", method, "--task", task, *options, "--limit", 2, "--out", tmp_path, "--json")
    (run,) = ran.json()["runs"]
    assert run["rows"]
    assert all(math.isfinite(row["value"]) for row in run["rows"])


def figures(run: dict[str, Any], metric: str) -> dict[int | None, float]:
    return {row["step"]: row["value"] for row in run["rows"] if row["metric"] == metric}


def test_full_context_helps_nano_the_more_entries_it_has(ttabench: Command, tmp_path: Path) -> None:
    common = ("eval", "--task", "lamp", "--limit", 60, "--out", tmp_path, "--json")
    runs = [ttabench(*common, "--method", method).json()["runs"][0] for method in ("none", "icl")]
    floor, ceiling = (figures(run, "acc_mean") for run in runs)
    assert set(floor) == set(ceiling) == {None, 1, 2, 4, 8, 16}
    for step in (4, 8, 16):
        assert ceiling[step] > floor[step] + 0.3, "at least 30 points"
    assert ceiling[1] < ceiling[4] < ceiling[16], "of four topics one or two entries name few"
    assert runs[1]["task"]["unit"] == "user"


def test_nano_answers_what_was_said_in_the_sessions_read_so_far(ttabench: Command, tmp_path: Path) -> None:
    common = ("eval", "--task", "msc", "--out", tmp_path, "--json", "--limit", 96, "--task-set", "steps=1,2,4")
    own, other, empty = ttabench(*common, "--method", "icl", "--swap-state").json()["runs"]
    one, two, four = (figures(own, "f1")[step] for step in (1, 2, 4))
    assert one + 0.1 < two < four - 0.3
    assert four > 0.9
    assert max(figures(other, "f1")[4], figures(empty, "f1")[4]) < 0.1
    assert own["task"]["unit"] == "conversation"


SHARED = ("--task", "shared_context", "--task-set", "contexts=3", "--task-set", "people=4")
Figures = dict[tuple[Any, Any], float]


def shared(ttabench: Command, out: Path, *words: str) -> list[Figures]:
    """Exact match of each run by step and sub-task."""
    runs = ttabench("eval", *SHARED, *words, "--out", out, "--json").json()["runs"]
    return [
        {(row["step"], row["subtask"]): row["value"] for row in run["rows"] if row["metric"] == "em"} for run in runs
    ]


def test_full_context_answers_and_another_context_does_not(ttabench: Command, tmp_path: Path) -> None:
    own, other, empty = shared(ttabench, tmp_path, "--method", "icl", "--swap-state")
    assert own[None, None] > 0.8
    assert max(other[None, None], empty[None, None]) < 0.3
    assert {"first", "again"} <= {subtask for _, subtask in own}


def test_a_window_that_lost_the_context_answers_what_turns_told_again(ttabench: Command, tmp_path: Path) -> None:
    kept = ("--method", "window", "--keep-tokens", "64")
    (alone,), (later,) = (
        shared(ttabench, tmp_path, *kept, "--task-set", f"mode={mode}") for mode in ("requests", "turns")
    )
    assert later[None, "again"] > alone[None, "again"]


RECALL = ("--task", "recall", "--task-set", "tokens=1500", "--task-set", "books=3", "--task-set", "questions=4")


def test_figures_by_distance_are_of_their_own_queries_and_compare_says_what_steps_are(
    ttabench: Command, tmp_path: Path
) -> None:
    for method in ("none", "icl"):
        assert ttabench("eval", "--method", method, *RECALL, "--out", tmp_path).code == 0
    ran = ttabench("eval", "--method", "icl", *RECALL, "--out", tmp_path, "--json")
    (run,) = ran.json()["runs"]
    rows = {(row["metric"], row["step"]): row for row in run["rows"]}
    assert {step for _, step in rows} == {None, 512, 1024, 2048}
    for metric in ("acc", "option_nll"):
        steps = [rows[metric, step] for step in (512, 1024, 2048)]
        assert sum(row["n"] for row in steps) == rows[metric, None]["n"], "no query counts at two distances"
        mean = sum(row["n"] * row["value"] for row in steps) / rows[metric, None]["n"]
        assert rows[metric, None]["value"] == pytest.approx(mean)
    told = ttabench("compare", "--out", tmp_path, "--format", "markdown")
    assert "acc by tokens read since the answer, at most" in told.out
    assert "3 books" in told.out, "books are what varies"


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
