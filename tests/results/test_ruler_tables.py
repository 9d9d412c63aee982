"""RULER's tables and figure: what the records say, a line a method and share kept."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.places import ROOT


def test_a_table_has_every_share_by_sub_task(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--task", "ruler", "--task-set", "length=400", "--limit", 5)
    for words in (["icl"], ["window", "--keep", "0.5"], ["window", "--keep", "0.1"]):
        assert ttabench("eval", "--method", *words, *small, "--out", tmp_path / "ruler").code == 0
    monkeypatch.syspath_prepend(ROOT / "results")
    tables, figure = importlib.import_module("ruler_tables"), importlib.import_module("figure")
    assert tables.scores(tmp_path / "ruler")["kept"].unique().tolist() == [1.0, 0.5, 0.1]
    frame = tables.scores(tmp_path / "ruler").assign(value=[float(place) for place in range(18)], stderr=1.5)
    monkeypatch.setattr(tables, "scores", lambda _: frame)
    _, head, _, *lines = [line for line in tables.written(tmp_path).splitlines() if "|" in line or "tokens**" in line]
    assert [line.split(" | ")[0] for line in lines] == ["| icl", "| window 50 %", "| window 10 %"]
    assert head.endswith("| qa_1 | mean |")
    assert lines[1].endswith("| 10.0 | 11.0 ± 1.5 |")
    monkeypatch.setattr(figure, "HERE", tmp_path)
    (axes,) = (axes for axes in figure.draw_ruler().axes if axes.get_title().endswith("400 tokens"))
    assert axes.containers[0].lines[0].get_xdata().tolist() == [50.0, 90.0], "shares removed"
