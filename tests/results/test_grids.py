"""The grids of results/: a line a method, a column a value of an option or a sub-task, pooled over seeds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Command
from tests.places import ROOT
from ttabench.report.compare import compared
from ttabench.report.entries import pooled


@pytest.fixture(scope="module")
def grids() -> ModuleType:
    path = ROOT / "results" / "grids.py"
    spec = importlib.util.spec_from_file_location("grids", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_grids_hold_what_the_records_say(grids: ModuleType, ttabench: Command, tiny_base: Path, tmp_path: Path) -> None:
    for method, shots in (("icl", 1), ("icl", 0), ("none", 1)):
        words = [f"shots={shots}", "task=sst2,rte", "demonstrations=4", "queries=4"]
        chosen = [word for setting in words for word in ("--task-set", setting)]
        ran = ttabench("eval", "--method", method, "--task", "superglue", "--source", "mini", "--model", tiny_base,
                       "--seeds", "0,1", *chosen, "--out", tmp_path, "--json")  # fmt: skip
        assert ran.code == 0, ran.err
    stored, runs = grids.runs_of(tmp_path), grids.records(tmp_path)
    head, _, *lines = grids.by_option(stored, "shots", grids.quality).splitlines()
    assert cells(head) == ["task", "method", "shots=0", "shots=1"]
    assert [cells(line)[:2] for line in lines] == [["superglue", "none"], ["superglue", "icl"]]
    assert cells(lines[0])[2] == ""
    alike = [run for run in runs if run.config["method"] == "icl" and run.config["task_options"]["shots"] == 1]
    value, _, n = pooled([row for run in alike if (row := run.value("acc")) is not None])
    assert n == 16
    assert cells(lines[1])[3].startswith(f"{100 * value:.1f} ±")
    (entry,) = compared([(folder, run) for folder, run in stored if run in alike]).entries
    assert entry.stderr is not None
    assert cells(lines[1])[3] == f"{100 * value:.1f} ± {100 * entry.stderr:.1f}", "the error that compare shows"
    head, _, *lines = grids.by_part(runs).splitlines()
    assert cells(head) == ["method", "rte", "sst2", "mean"]
    first, second, mean = (float(cell.split(" ±")[0]) for cell in cells(lines[1])[1:])
    assert mean == pytest.approx((first + second) / 2, abs=0.11)
    assert [cells(line)[0] for line in lines] == ["none", "icl"]
    sizes = grids.by_option(stored, "shots", grids.state).splitlines()
    assert cells(sizes[2])[3] == "0 B"
    assert cells(sizes[3])[3] != "0 B"
