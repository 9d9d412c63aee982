"""A few lines of Python: options are those of the command line, runs are its runs, tables are DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ttabench as package
from tests.conftest import Command
from tests.places import ROOT
from ttabench.core.errors import UserError

SMALL: dict[str, Any] = {"task": "streamingqa", "task_set": {"documents": 2}}


def test_a_run_is_the_one_of_the_command_line(ttabench: Command, tmp_path: Path) -> None:
    typed = ("eval", "--method", "window", "--set", "n_sink=2", "--task-set", "documents=2", "--limit", 1, "--seed", 3)
    (told,) = ttabench(*typed, "--out", tmp_path, "--json").json()["runs"]
    run = package.evaluate("window", "streamingqa", seed=3, set={"n_sink": 2}, task_set={"documents": 2}, limit=1,
                           preset=None, out=tmp_path)  # fmt: skip
    assert (run.record.id, run.folder) == (told["id"], tmp_path / told["id"])
    assert len(run.table) == len(told["rows"])
    assert run.table["value"].tolist() == [row["value"] for row in told["rows"]]
    assert run.samples["f1"].mean() == run.table.set_index("metric").loc["f1", "value"]
    assert repr(run).startswith("<window on streamingqa, base nano: f1 ")


def test_runs_are_found_and_compared(ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTABENCH_OUT", str(tmp_path / "deep/er"))
    runs = [package.evaluate(method, **SMALL) for method in ("none", "icl")]
    assert package.load(tmp_path / "deep" / "er") == package.load(f"{tmp_path}/**") == runs
    assert package.load(*(run.folder for run in runs[::-1])) == runs[::-1]
    below, there = (package.load(ROOT / name) for name in ("results/nine/**", "results/nine"))
    assert {run.record.id for run in below} == {run.record.id for run in there}, "packed ones, too"
    compared = package.compare(runs)
    told = ttabench("compare", tmp_path / "deep/er", "--json").json()
    assert compared.verdict == str(compared) == told.pop("verdict")
    assert compared.tables.keys() == told.keys() == {"runs", "differences"}
    assert compared.tables["differences"]["p"].tolist() == [row["p"] for row in told["differences"]]
    (runs[0].folder / "run.json").write_text("{}")
    with pytest.warns(UserWarning, match="Left out: .*run.json cannot be read"):
        assert package.load(tmp_path / "deep/er") == runs[1:]
    with pytest.raises(UserError, match="nowhere leads to no run"):
        package.load("nowhere")
    with pytest.raises(UserError, match=r"^evaluate: limit: Input should be a valid integer, received 'x'\."):
        package.evaluate(limit="x")
