"""What `results/suites.py` takes for granted about the twins, and what is committed of the suites."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Command
from tests.places import ROOT
from ttabench.records.packed import ALL_SAMPLES_FILE, RUNS_FILE
from ttabench.records.schema import RECORD_FILE, SAMPLES_FILE
from ttabench.report.finding import runs_in

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_suites", RESULTS / "suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_suite_is_made_of_commands_that_can_be_typed(suites: ModuleType) -> None:
    from ttabench.methods.registry import find

    for commands in suites.SUITES.values():
        assert len({tuple(words) for words in commands}) == len(commands)
        for words in commands:
            assert words[0] == "--method"
            spec = find(words[1])
            assert spec.name == words[1]
            if "--preset" in words:
                assert words[words.index("--preset") + 1] in spec.presets


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(RESULTS), *sys.path])
    return importlib.import_module("make")


def test_grids_of_the_tables_are_what_the_records_say(make: ModuleType) -> None:
    tables = {path.stem: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    there = [suite for suite in make.SUITES if make.has_runs(suite)]
    assert "unseen" in there
    assert [name for name in there if not tables[name].startswith(f"# {name}\n\n{make.grid_of(name, RESULTS)}")] == []


def test_the_tables_of_real_data_name_runs_that_are_stored(make: ModuleType) -> None:
    for path in make.english.HERE.glob("*/index.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        named = {run for cells in told.values() for ids in cells.values() for run in ids}
        assert named <= {run.name for run in runs_in(path.parent)}, path


def test_what_is_made_is_packed_and_taken_out_again(
    make: ModuleType, ttabench: Command, common: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / "runs"
    assert ttabench("eval", "--method", "none", *common).code == 0
    suite = suite.rename(tmp_path / "swap")
    for option, expected in (("--pack", [RUNS_FILE, ALL_SAMPLES_FILE]), ("--unpack", [RECORD_FILE, SAMPLES_FILE])):
        monkeypatch.setattr(sys, "argv", ["make.py", option, "--out", str(tmp_path), "swap"])
        make.main()
        assert sorted(path.name for path in suite.rglob("*.*") if path.suffix) == expected
