"""Runs of the task `recall`: figures by distance, each of its own, with errors over books, and their tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

COMMON = ("--task", "recall", "--task-set", "tokens=1500", "--task-set", "books=3", "--task-set", "questions=4")


def test_figures_by_distance_are_of_their_own_queries_and_compare_says_what_steps_are(
    ttabench: Command, tmp_path: Path
) -> None:
    for method in ("none", "icl"):
        assert ttabench("eval", "--method", method, *COMMON, "--out", tmp_path).code == 0
    ran = ttabench("eval", "--method", "icl", *COMMON, "--out", tmp_path, "--json")
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
