"""Runs of the task `shared_context`: what answers under the own state, another's and none, in both of its modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import Command

COMMON = ("--task", "shared_context", "--task-set", "contexts=3", "--task-set", "people=4")
Figures = dict[tuple[Any, Any], float]


def figures(ttabench: Command, out: Path, *words: str) -> list[Figures]:
    """Exact match of each run by step and sub-task."""
    runs = ttabench("eval", *COMMON, *words, "--out", out, "--json").json()["runs"]
    return [
        {(row["step"], row["subtask"]): row["value"] for row in run["rows"] if row["metric"] == "em"} for run in runs
    ]


def test_full_context_answers_and_another_context_does_not(ttabench: Command, tmp_path: Path) -> None:
    own, other, empty = figures(ttabench, tmp_path, "--method", "icl", "--swap-state")
    assert own[None, None] > 0.8
    assert max(other[None, None], empty[None, None]) < 0.3
    assert {"first", "again"} <= {subtask for _, subtask in own}


def test_a_window_that_lost_the_context_answers_what_turns_told_again(ttabench: Command, tmp_path: Path) -> None:
    kept = ("--method", "window", "--keep-tokens", "64")
    (alone,), (later,) = (
        figures(ttabench, tmp_path, *kept, "--task-set", f"mode={mode}") for mode in ("requests", "turns")
    )
    assert later[None, "again"] > alone[None, "again"]
