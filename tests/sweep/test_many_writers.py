"""A folder of runs under several writers at once, one of which is killed: `results/bench_store.py`, smaller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench_store import written


@pytest.mark.skipif(not hasattr(os, "fork"), reason="refused: no forks here")
def test_no_run_is_lost_damaged_or_made_twice(tmp_path: Path) -> None:
    counts = written(tmp_path / "runs", writers=8, killed=1, seeds=4)
    assert counts["runs"] == counts["runs stored with all samples"] == counts["made once"] == 40
    assert counts["writers killed"] == counts["their runs, resumed by other writers"] == 1
    assert counts["queries answered"] == 40 * 16
    nothing = ("made twice", "failed", "queries answered twice", "incomplete files")
    assert [counts[name] for name in nothing] == [0] * len(nothing)
