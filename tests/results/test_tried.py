"""The page of trainings that do not ship is made from what is stored of them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "results"), *sys.path])
    return importlib.import_module("tried")


def test_the_page_says_what_is_stored(tried: ModuleType) -> None:
    stored = json.loads(tried.STORED.read_text(encoding="utf-8"))
    assert tried.PAGE.read_text(encoding="utf-8") == tried.page(stored)
    assert f"## {next(iter(stored))}" in tried.PAGE.read_text(encoding="utf-8")


def test_a_curve_is_the_mean_of_stretches_of_steps(
    tried: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = ROOT / "results/adapters/nano/mac-tree-streamingqa/adapter.json"
    (tmp_path / "adapter.json").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    lines = [{"step": n, "answer": float(n), "loss": 0.0, "lr": 1.0} for n in range(1, 13)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": 12, "validation": {"loss": 9.0}}])
    (tmp_path / "curve.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setattr(tried, "PARTS", 3)
    told = tried.trained(tmp_path)
    assert told["curve"] == [{"to": 4, "answer": 2.5}, {"to": 8, "answer": 6.5}, {"to": 12, "answer": 10.5}]
    assert told["method"] == "mac"
    assert "hierarchy_aware=0.6" in tried.settings_of(told)
    assert "num_virtual_tokens=16" not in tried.settings_of(told)
