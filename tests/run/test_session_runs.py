"""Conversations of several sessions through the loop: nano answers from its sessions alone, and figures are by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import Command


def figures(run: dict[str, Any], metric: str) -> dict[int | None, float]:
    return {row["step"]: row["value"] for row in run["rows"] if row["metric"] == metric}


def test_nano_answers_what_was_said_in_the_sessions_read_so_far(ttabench: Command, tmp_path: Path) -> None:
    common = ("eval", "--task", "msc", "--out", tmp_path, "--json", "--limit", 96, "--task-set", "steps=1,2,4")
    own, other, empty = ttabench(*common, "--method", "icl", "--swap-state").json()["runs"]
    one, two, four = (figures(own, "f1")[step] for step in (1, 2, 4))
    assert one + 0.1 < two < four - 0.3
    assert four > 0.9
    assert max(figures(other, "f1")[4], figures(empty, "f1")[4]) < 0.1
    assert own["task"]["unit"] == "conversation"
