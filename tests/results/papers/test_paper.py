"""`results/paper.py`: what is shown, what is run, what is refused; and the committed page of all claims."""

from __future__ import annotations

import json
from pathlib import Path

import claims
import make
import paper
import pytest
from papers import declared
from papers.judging import stored

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


def test_the_committed_claims_are_what_the_committed_runs_say() -> None:
    page = (ROOT / "results/claims.md").read_text(encoding="utf-8")
    assert claims.claims_page(stored(make.committed())) == page, (
        "run: python results/make.py claims"
    )
    assert make.committed()
    assert not [folder for folder in make.committed() if "scratch" in folder.parts]


def test_the_list_says_of_every_table_where_its_runs_are_made(papers: Command) -> None:
    found = {row["table"]: row for row in papers("list", "--json").json()["tables of the papers"]}
    assert set(found) == set(declared.names())
    assert found["mac/table1"]["runs"] == "nano, smollm2-135m, full (with a GPU)"
    assert found["mac/table1"]["figures"] == 90
    assert found["ccm/table22"]["runs"] == "no: RMT is not here"
    assert all(row["runs"] for row in found.values())


def test_a_table_shows_ours_beside_the_papers(papers: Command, tmp_path: Path) -> None:
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
    (beside,) = [rows for title, rows in found.items() if title.startswith("mac/table1")]
    ours = {row["method"]: row for row in beside if row["ours, nano"]}
    assert set(ours) == {"uniform", "salient-spans"}
    assert (ours["uniform"]["llama-2-7b"], ours["uniform"]["metric"]) == ("13.54", "f1")
    assert ours["uniform"]["ours, nano"].startswith("20.0 ±")
    shown = papers("mac/table1", "--out", tmp_path)
    assert "compare the order of lines, not the figures" in " ".join(shown.out.split())
    assert ("1 no control" in shown.out, "no runs of" in shown.out) == (True, False)
    assert "17 of 18 claims have no runs here." in shown.out
    assert f"mac/table1.nano.yaml --out {tmp_path}" in ran.err


def test_a_table_without_runs_shows_the_papers_figures(papers: Command) -> None:
    ran = papers("mac/table9", "--json")
    ((title, rows),) = ran.json().items()
    assert title.startswith("mac/table9")
    assert {row["llama-2-7b"] for row in rows} == {"17.98", "25.98", "19.26", "27.2"}
    assert "CCM with a retriever is not here" in ran.err


def test_all_claims_are_shown_and_are_a_page(papers: Command, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    run(tmp_path / "suite", "uniform", 0.2)
    run(tmp_path / "suite", "salient_spans", 0.8)
    page = claims.claims_page(stored([tmp_path / "x", tmp_path]))
    assert (
        "salient-spans better than uniform | streamingqa | streamingqa (mini), base nano | 60.0 ["
        in page
    )
    assert "distinct claims 1 have runs. Scale by scale, 0 hold with a memory" in page
    found = papers("claims", "--runs", tmp_path, "--out", tmp_path / "x", "--json").json()["claims"]
    assert {row["paper"] for row in found} == set(declared.PAPERS)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("mac/tabel1",), "Did you mean 'table1'"),
        (("mac",), "Which table of mac?"),
        (("claims", "--out", "nothing"), "There are no runs in nothing"),
        (("mac/table1", "--runs", "nothing"), "There are no runs in nothing"),
    ],
)
def test_bad_input_is_one_line(
    typed: tuple[str, ...],
    said: str,
    papers: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in error_line(papers(*typed))
