"""Profiles through the loop: nano answers a user's query from the entries read, the more the more it read."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Command

STEPS = (1, 2, 4, 8, 16)


def test_full_context_helps_nano_the_more_entries_it_has(ttabench: Command, tmp_path: Path) -> None:
    common = ("eval", "--task", "lamp", "--limit", 60, "--out", tmp_path, "--json")
    runs = [ttabench(*common, "--method", method).json()["runs"][0] for method in ("none", "icl")]
    floor, ceiling = ({row["step"]: row["value"] for row in run["rows"] if row["metric"] == "acc_mean"} for run in runs)
    assert set(floor) == set(ceiling) == {None, *STEPS}
    for step in (4, 8, 16):
        assert ceiling[step] > floor[step] + 0.3, "at least 30 points"
    assert ceiling[1] < ceiling[4] < ceiling[16], "of four topics one or two entries name few"
    assert runs[1]["task"]["unit"] == "user"
