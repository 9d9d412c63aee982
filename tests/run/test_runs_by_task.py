"""Runs of tasks of several shapes: nano answers from what it has read, and figures are by step, piece or distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command


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
