"""Tests of the page of all claims."""

from __future__ import annotations

import re
from pathlib import Path

import make
from papers.claims import claims_page
from papers.judging import load_stored_runs

from tests.places import ROOT
from tests.results.papers.test_judging import run


def test_committed_claims_match_the_committed_runs() -> None:
    page = (ROOT / "results/claims.md").read_text(encoding="utf-8")
    assert claims_page(load_stored_runs(make.committed())) == page, (
        "run: python results/make.py claims"
    )


def test_a_claim_with_runs_has_a_row(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    run(tmp_path / "suite", "uniform", 0.2)
    run(tmp_path / "suite", "salient_spans", 0.8)
    page = claims_page(load_stored_runs([tmp_path / "x", tmp_path]))
    setting = "salient-spans better than uniform | streamingqa | streamingqa (mini), base nano"
    assert f"{setting} | 60.0 [" in page
    assert re.search(r"^1 of \d+ distinct claims", page, re.M)
