"""Every method runs on every family of tasks, at the settings it ships with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.conftest import Command
from ttabench.methods.registry import methods

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
