"""Every method reads each family of tasks under the base model that ships, its adapter untrained where none ships."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.conftest import Command
from ttabench.methods.registry import methods

_QUESTIONS = ("--task-set", "documents=1", "--task-set", "questions=1", "--limit", "1")
_STEPS = ("--task-set", "steps=1,2", "--limit", "2")
FAMILIES: dict[str, tuple[str, ...]] = {
    "streamingqa": _QUESTIONS,
    "squad_seq": _QUESTIONS,
    "archivalqa": _QUESTIONS,
    "superglue": ("--task-set", "shots=2", "--limit", "5"),
    "metaicl": ("--task-set", "steps=2", "--limit", "6"),
    "lamp": _STEPS,
    "msc": ("--limit", "2"),
    "dailydialog": _STEPS,
    "shared_context": ("--task-set", "people=2", "--limit", "2"),
    "ruler": ("--task-set", "length=400", "--task-set", "tasks=niah_multikey_1", "--limit", "1"),
    "pg19": ("--task-set", "tokens=1088", "--task-set", "books=1"),
}


@pytest.mark.parametrize("method", methods())
def test_a_method_reads_every_family(method: str, ttabench: Command, tmp_path: Path) -> None:
    for task, words in FAMILIES.items():
        ran = ttabench("eval", "--method", method, "--task", task, *words, "--out", tmp_path, "--json")
        assert ran.code == 0, (task, ran.err)
        (run,) = ran.json()["runs"]
        asked = [row for row in run["rows"] if row["step"] is None and row["subtask"] is None]
        assert asked, task
        assert all(math.isfinite(row["value"]) and row["n"] > 0 for row in asked), task
