"""Scores of queries are added to stored runs, and nothing else about these runs changes."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT
from tests.report.test_compare import stored
from tests.report.test_verdict import right
from ttabench.records.packing import pack
from ttabench.records.sample_files import has_samples
from ttabench.records.schema import SAMPLES_FILE, load_record
from ttabench.records.suite_archive import SCORES_FILE


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "results")
    return importlib.import_module("english_run")


@pytest.fixture
def suite(tmp_path: Path, runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of two cells, one run each, packed without samples; beside it the same runs with theirs."""
    out, whole = tmp_path / "suites" / "mine", tmp_path / "again"
    whole.mkdir()
    for method in ("none", "icl"):
        stored(whole, method, right({"none": 0.1, "icl": 0.7}[method]), method=method)
        shutil.copytree(whole / method, out / method)
        (out / method / SAMPLES_FILE).unlink()
    pack(out, scores=True)
    (out / "index.json").write_text(json.dumps({each: {"8": [each]} for each in ("none", "icl")}), encoding="utf-8")
    first = next(iter(runner.SUITES.values()))
    cells = tuple(replace(first.cells[0], line=each, column="8", words=("--method", each)) for each in ("none", "icl"))
    made_up = replace(first, cells=cells)
    monkeypatch.setattr(runner, "SUITES", {"mine": made_up})
    return out


def runs(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, whole: Path, out: Path) -> list[str]:
    """What is run in place of `ttabench eval`: copies; returns the methods that were."""
    asked: list[str] = []

    def copied(words: list[str]) -> list[str]:
        assert "--force" in words, "without it the stored run comes back"
        method = words[words.index("--method") + 1]
        asked.append(method)
        shutil.copytree(whole / method, out / method)
        return [method]

    monkeypatch.setattr(runner, "stored", copied)
    return asked


def test_scores_are_added_where_there_are_none(
    suite: Path, runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = runs(runner, monkeypatch, tmp_path / "again", suite)
    assert not any(has_samples(suite / each) for each in ("none", "icl"))
    runner.add_scores(["mine"], Path("data"), suite.parent)
    assert asked == ["none", "icl"]
    assert all(has_samples(suite / each) for each in ("none", "icl"))
    assert (suite / SCORES_FILE).is_file()
    runner.add_scores(["mine"], Path("data"), suite.parent)
    assert asked == ["none", "icl"], "what has scores is not run again"


def test_other_figures_are_refused_and_the_stored_run_stays(
    suite: Path, runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_record(suite / "icl")
    shutil.rmtree(tmp_path / "again" / "icl")
    stored(tmp_path / "again", "icl", right(0.6), method="icl")
    runs(runner, monkeypatch, tmp_path / "again", suite)
    with pytest.raises(SystemExit, match="mine, icl, 8: other figures than are stored"):
        runner.add_scores(["mine"], Path("data"), suite.parent)
    assert load_record(suite / "icl") == before
    assert not has_samples(suite / "icl")
    assert has_samples(suite / "none"), "what was added before stays"
