"""Tests of the command line `results/paper.py`, and of the committed page of all claims."""

from __future__ import annotations

import json
import re
from pathlib import Path

import claims
import make
import paper
import pytest
from papers import declared
from papers.judging import load_stored_runs

from tests.conftest import Command, CommandResult, error_line
from tests.places import ROOT
from tests.results.papers.test_judging import run


@pytest.fixture
def papers(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line of `paper.py` in this process."""

    def call(*arguments: object) -> CommandResult:
        capsys.readouterr()
        code = paper.run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return CommandResult(code, printed.out, printed.err)

    return call


def test_committed_claims_match_the_committed_runs() -> None:
    page = (ROOT / "results/claims.md").read_text(encoding="utf-8")
    assert claims.claims_page(load_stored_runs(make.committed())) == page, (
        "run: python results/make.py claims"
    )
    assert make.committed()
    assert not [folder for folder in make.committed() if "scratch" in folder.parts]


def test_list_names_the_suites_of_every_table(papers: Command) -> None:
    found = {row["table"]: row for row in papers("list", "--json").json()["tables of the papers"]}
    assert set(found) == set(declared.names())
    assert found["mac/table1"]["runs"] == "nano, smollm2-135m, full (with a GPU)"
    assert found["mac/table1"]["figures"] == 90
    assert found["ccm/table22"]["runs"].startswith("no: RMT")
    assert all(row["runs"] for row in found.values())


def test_a_table_has_our_results_next_to_the_papers(papers: Command, tmp_path: Path) -> None:
    run(tmp_path, "uniform", 0.2)
    run(tmp_path, "salient_spans", 0.8)
    ran = papers("mac/table1", "--out", tmp_path, "--format", "json")
    found = json.loads(ran.out)
    (claims,) = [rows for title, rows in found.items() if title == "claims"]
    (decided,) = [row for row in claims if row["verdict"] != "no runs"]
    assert (decided["claim"], decided["verdict"]) == (
        "salient-spans better than uniform",
        "no control",
    )
    assert decided["ci_low"] > 0
    (reported,) = [rows for title, rows in found.items() if title.startswith("mac/table1")]
    ours = {row["method"]: row for row in reported if row["ours, nano"]}
    assert set(ours) == {"uniform", "salient-spans"}
    assert (ours["uniform"]["llama-2-7b"], ours["uniform"]["metric"]) == ("13.54", "f1")
    assert ours["uniform"]["ours, nano"].startswith("20.0 ±")
    shown = papers("mac/table1", "--out", tmp_path)
    assert ("1 no control" in shown.out, "no runs of" in shown.out) == (True, False)
    assert "17 of 18 claims" in shown.out
    assert f"mac/table1.nano.yaml --out {tmp_path}" in ran.err


def test_a_table_without_runs_has_the_papers_figures(papers: Command) -> None:
    ran = papers("mac/table9", "--json")
    ((title, rows),) = ran.json().items()
    assert title.startswith("mac/table9")
    assert {row["llama-2-7b"] for row in rows} == {"17.98", "25.98", "19.26", "27.2"}
    assert "CCM with a retriever" in ran.err


def test_all_claims_are_printed_and_written_to_a_page(papers: Command, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    run(tmp_path / "suite", "uniform", 0.2)
    run(tmp_path / "suite", "salient_spans", 0.8)
    page = claims.claims_page(load_stored_runs([tmp_path / "x", tmp_path]))
    assert (
        "salient-spans better than uniform | streamingqa | streamingqa (mini), base nano | 60.0 ["
        in page
    )
    assert re.search(r"^1 of \d+ distinct claims", page, re.M)
    found = papers("claims", "--runs", tmp_path, "--out", tmp_path / "x", "--json").json()["claims"]
    assert {row["paper"] for row in found} == set(declared.PAPERS)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("mac/tabel1",), "Did you mean 'table1'"),
        (("mac",), "mac/table1"),
        (("claims", "--out", "nothing"), "--runs"),
        (("mac/table1", "--runs", "nothing"), "nothing has no runs"),
    ],
)
def test_user_errors_are_one_line(
    typed: tuple[str, ...],
    expected: str,
    papers: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in error_line(papers(*typed))
