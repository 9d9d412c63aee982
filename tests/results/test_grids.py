"""The grids of results/: a line a method, a column a value of an option or a sub-task, pooled over seeds."""

from __future__ import annotations

import importlib.util
import json
import shutil
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


def test_runs_of_one_method_are_told_apart_by_preset_and_ratio(
    grids: ModuleType, ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    words = ["--task", "superglue", "--source", "mini", "--model", tiny_base, "--out", tmp_path, "--quiet",
             "--task-set", "task=sst2", "--task-set", "shots=2", "--task-set", "queries=4"]  # fmt: skip
    for more in (("none",), ("icl", "--task-set", "ratio=1", "--swap-state"), ("icl", "--task-set", "ratio=0"),
                 ("snapkv", "--preset", "streamadapter")):  # fmt: skip
        assert ttabench("eval", "--method", *more, *words).code == 0
    _, _, *lines = grids.by_part(grids.records(tmp_path)).splitlines()
    assert {cells(line)[0] for line in lines} == {
        "none", "icl ratio=0", "icl ratio=1", "icl ratio=1 another text's state", "icl ratio=1 empty state", "snapkv",
    }  # fmt: skip


def test_a_grid_by_state_holds_differences_by_seed(
    grids: ModuleType, ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    options = ["tokens=40", "window=24", "stride=16", "books=2"]
    chosen = [word for setting in options for word in ("--task-set", setting)]
    ran = ttabench("eval", "--method", "icl", "--task", "pg19", "--source", "mini", "--model", tiny_base,
                   "--swap-state", *chosen, "--out", tmp_path, "--json")  # fmt: skip
    own, other, none = (row["value"] for run in ran.json()["runs"] for row in run["rows"]
                        if (row["metric"], row["subtask"]) == ("ppl", None))  # fmt: skip
    assert len({own, other, none}) == 3
    _, _, *lines = grids.by_state(grids.records(tmp_path)).splitlines()
    shown = [cells(line) for line in lines]
    assert [line[0] for line in shown] == ["own state", "another text's state", "empty state"]
    assert float(shown[0][1].replace(",", "")) == pytest.approx(own, abs=0.51)
    assert float(shown[0][2]) == pytest.approx(100 * (own / other - 1), abs=0.006)
    assert float(shown[1][3]) == pytest.approx(100 * (other / none - 1), abs=0.006)
    assert (shown[1][2], shown[2][3]) == ("", "")


def test_a_grid_by_length_holds_the_perplexity_of_every_length(
    grids: ModuleType, ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    options = ["tokens=40,72", "window=24", "stride=16", "books=2"]
    chosen = [word for setting in options for word in ("--task-set", setting)]
    ran = ttabench("eval", "--method", "none", "--task", "pg19", "--source", "mini", "--model", tiny_base,
                   "--seeds", "0,1", *chosen, "--out", tmp_path, "--quiet")  # fmt: skip
    assert ran.code == 0, ran.err
    runs = grids.records(tmp_path)
    head, _, line = grids.by_length(runs).splitlines()
    assert cells(head) == ["method", "40", "72"]
    found = [row.value for run in runs for row in run.rows if (row.metric, row.subtask, row.step) == ("ppl", None, 72)]
    assert cells(line)[2].startswith(f"{sum(found) / 2:.3f} ±")


def test_a_grid_by_documents_tells_trees_apart(
    grids: ModuleType, ttabench: Command, tiny_base: Path, tmp_path: Path
) -> None:
    small = ["--set", "num_virtual_tokens=2", "--set", "amortiser=scratch:16,1,2,32",
             "--set", "input_encoder=scratch:16,1,2,32"]  # fmt: skip
    for tree in ([], ["hierarchy=2"], ["hierarchy=2", "hierarchy_by=attended"]):
        chosen = [word for setting in tree for word in ("--set", setting)]
        ran = ttabench("eval", "--method", "mac", "--checkpoint", "none", "--task", "streamingqa", "--source", "mini",
                       "--model", tiny_base, *small, *chosen, "--task-set", "documents=3",
                       "--out", tmp_path)  # fmt: skip
        assert ran.code == 0, ran.err
    head, _, *lines = grids.by_documents({3: grids.runs_of(tmp_path)}).splitlines()
    assert cells(head) == ["method", "3 documents"]
    assert sorted(cells(line)[0] for line in lines) == [
        "mac",
        "mac hierarchy=2",
        "mac hierarchy=2 hierarchy_by=attended",
    ]


def test_a_task_that_an_adapter_never_saw_has_a_dash_whatever_its_name(grids: ModuleType) -> None:
    runs = grids.runs_of(ROOT / "results" / "transfer")
    renamed = {"checkpoint": "shipped:mac-squad_seq"}
    runs = [(folder, run.model_copy(update={"config": {**run.config, **renamed}})) for folder, run in runs]
    for transfer in (True, False):
        _, _, *lines = grids.by_task(runs, transfer=transfer).splitlines()
        assert {cells(line)[0]: "-" in cells(line) for line in lines if "another" not in line} == {
            "none": False, "mac": not transfer, "camels": not transfer
        }  # fmt: skip


def test_a_grid_by_training_has_the_mean_of_adapters(grids: ModuleType, ttabench: Command, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "ttabench/assets/adapters/nano/ccm_merge-metaicl", other)
    header = json.loads((other / "adapter.json").read_text())
    header["training"]["config"]["seed"] = 1
    (other / "adapter.json").write_text(json.dumps(header))
    values = []
    for checkpoint in ("shipped:ccm-metaicl", other):
        ran = ttabench("eval", "--method", "ccm", "--task", "lamp", "--checkpoint", checkpoint, "--limit", "8",
                       "--seeds", "0,1", "--out", tmp_path / "runs", "--json")  # fmt: skip
        assert ran.code == 0, ran.err
        found = [100 * row["value"] for run in ran.json()["runs"] for row in run["rows"]
                 if (row["metric"], row["step"], row["subtask"]) == ("acc_mean", None, None)]  # fmt: skip
        values.append(sum(found) / len(found))
    head, _, line = grids.by_training(grids.records(tmp_path / "runs")).splitlines()
    assert cells(head) == ["task", "whose state answers", "mean of trainings", "training seed 0", "training seed 1"]
    task, state, mean, *each = cells(line)
    assert (task, state) == ("lamp (acc_mean)", "own state")
    assert [float(cell) for cell in each] == pytest.approx(values, abs=0.06)
    told, error = (float(cell) for cell in mean.split(" ± "))
    assert told == pytest.approx(sum(values) / 2, abs=0.06)
    assert error == pytest.approx(abs(values[0] - values[1]) / 2, abs=0.06)
