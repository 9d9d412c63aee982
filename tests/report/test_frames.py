"""Grids: lines as they came, columns sorted, a cell of everything that belongs there."""

from __future__ import annotations

from tests.records.test_records import record
from ttabench.report.frames import crossed


def test_a_cell_is_made_of_all_its_items() -> None:
    found = [("icl", 16, 0.5), ("icl", 4, 0.7), ("none", 4, 0.1), ("icl", 4, 0.6)]
    grid = crossed(iter(found), lambda values: f"{values}")
    assert list(grid.columns) == [4, 16]
    assert list(grid.itertuples(name=None)) == [("icl", "[0.7, 0.6]", "[0.5]"), ("none", "[0.1]", "")]


def test_lines_may_have_several_words_and_items_be_records() -> None:
    runs = [record("bb"), record("aa")]
    grid = crossed((((run.source, run.id), "all", run) for run in runs), lambda each: each[0].id)
    assert list(grid.index) == [("mini", "bb"), ("mini", "aa")]
    assert list(grid["all"]) == ["bb", "aa"]
