"""Every method runs on every family of tasks; nano answers from what it has read; figures by step, piece, distance."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.conftest import Command
from tools.small_tasks import SMALL_TASKS
from ttabench.methods.registry import methods


@pytest.mark.parametrize("task", SMALL_TASKS)
@pytest.mark.parametrize("method", methods())
def test_a_method_runs_on_a_task(ttabench: Command, tmp_path: Path, method: str, task: str) -> None:
    options = [word for option in SMALL_TASKS[task] for word in ("--task-set", option)]
    ran = ttabench(
        "eval",
        "--method",
        method,
        "--task",
        task,
        *options,
        "--limit",
        2,
        "--out",
        tmp_path,
        "--json",
    )
    (run,) = ran.json()["runs"]
    assert run["rows"]
    assert all(math.isfinite(row["value"]) for row in run["rows"])


RECALL = (
    "--task",
    "recall",
    "--task-set",
    "tokens=1500",
    "--task-set",
    "books=3",
    "--task-set",
    "questions=4",
)


def test_figures_by_distance_are_of_their_own_queries_and_compare_reports_what_steps_are(
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
        assert sum(row["n"] for row in steps) == rows[metric, None]["n"], (
            "no query counts at two distances"
        )
        mean = sum(row["n"] * row["value"] for row in steps) / rows[metric, None]["n"]
        assert rows[metric, None]["value"] == pytest.approx(mean)
    told = ttabench("compare", "--out", tmp_path, "--format", "markdown")
    assert "acc by maximum tokens read since the answer" in told.out
    assert "books" in told.out, "books are what varies"
