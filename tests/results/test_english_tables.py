"""Tables of real text: the figures, errors and intervals are those of `ttabench compare`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT
from tests.report.test_crossed_runs import drawn, right
from ttabench.records.schema import SAMPLES_FILE
from ttabench.report.compare import compare


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "results")
    return importlib.import_module("english_tables")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A suite of three draws of the same hundred questions: `none` answers alike in all of them, `icl` nearly so."""
    suite = tmp_path / "arc_easy"
    suite.mkdir()
    index = {}
    for method, shares in (("none", (0.54, 0.54, 0.54)), ("icl", (0.64, 0.65, 0.66))):
        index[method] = {"5 shots": [drawn(suite, method, seed, right(s, 100)).name for seed, s in enumerate(shares)]}
    (suite / "index.json").write_text(json.dumps(index))
    return [suite / run for cells in index.values() for run in cells["5 shots"]]


def test_figures_and_gains_are_those_of_compare(tables: ModuleType, folders: list[Path]) -> None:
    found = tables.written("arc_easy", folders[0].parents[1])
    assert "| none | 54.0 ± 5.0 |" in found
    (icl,) = (entry for entry in compare(folders).entries if entry.method == "icl")
    assert f"| icl | 65.0 ± {100 * (icl.stderr or 0.0):.1f} |" in found
    (apart,) = compare(folders).differences
    assert apart.ci_low is not None
    assert apart.ci_high is not None
    assert f"5 shots: 11.0 [{100 * apart.ci_low:.1f}, {100 * apart.ci_high:.1f}].\n" in found
    assert 0 < apart.ci_low < 0.08, "paired by question, and over questions and draws"


def test_no_interval_is_made_of_figures_alone(tables: ModuleType, folders: list[Path]) -> None:
    for folder in folders:
        (folder / SAMPLES_FILE).unlink()
    found = tables.written("arc_easy", folders[0].parents[1])
    assert "| none | 54.0 ± 5.0 |" in found, "draws alone would say 0.0"
    assert found.endswith("where the scores of queries are kept: 5 shots: 11.0.\n")
