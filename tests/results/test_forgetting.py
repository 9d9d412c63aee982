"""What reading does to other text: states are made once, and the table says what their records say."""

from __future__ import annotations

import importlib
import sys
from math import log
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Command
from tests.places import ROOT
from ttabench.records.schema import load_record
from ttabench.report.finding import runs_in


@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "results"), *sys.path])
    return importlib.import_module("forgetting")


def test_a_state_is_asked_about_its_documents_and_scored_on_what_it_has_not_read(
    forgetting: ModuleType, ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "DOCUMENTS", 4)
    states, out = tmp_path / "states", tmp_path / "runs"
    methods = {"none": ["none"], "uniform": ["uniform", "--set", "lr=1e-3"]}
    forgetting.read(states, methods)
    made = (states / "uniform/state.json").stat().st_mtime_ns
    forgetting.read(states, methods)
    assert (states / "uniform/state.json").stat().st_mtime_ns == made
    for name, words in methods.items():
        for task in ("streamingqa --task-set documents=4", "dailydialog --task-set steps=1"):
            asked = ("--task", *task.split(), "--state", states / name, "--ask-only", "--limit", 8)
            ran = ttabench("eval", "--method", *words, *asked, "--out", out)
            assert ran.code == 0, ran.err
    runs = [(folder, load_record(folder)) for folder in runs_in(out)]
    head, _, *lines = [line for line in forgetting.table(runs).splitlines() if line.startswith("|")]
    assert head.count("|") == 5
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    cells = {method: row for method, *row in lines}
    assert cells["none"][2] == ""
    nats = {
        str(run.config["method"]): log(run.value("ppl").value) for _, run in runs if run.config["task"] != "streamingqa"
    }
    for method, value in nats.items():
        assert cells[method][1] == f"{value:.3f}"
    apart, ends = cells["uniform"][2].split(" ", 1)
    low, high = (float(end) for end in ends.strip("[]").split(", "))
    assert float(apart) == pytest.approx(nats["uniform"] - nats["none"], abs=1e-3)
    assert low < float(apart) < high
