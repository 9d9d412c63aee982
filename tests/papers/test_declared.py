"""What is declared of the papers: every table with figures, suites that name runs, claims whose figures are there."""

from __future__ import annotations

import pytest

from tests.places import ROOT
from ttabench.papers import declared
from ttabench.papers.claims import figures as of_line
from ttabench.papers.declared import PAPERS, by_model, figures, reported
from ttabench.papers.matching import named
from ttabench.records.schema import runs
from ttabench.sweep.grid import cells, planned
from ttabench.sweep.suite import read

SUITES = [(name, scale, file) for name in declared.names()
          for scale, file in declared.suites(*name.split("/")).items()]  # fmt: skip

DRAWN = {"mac/figure7", "streamadapter/figure5", "generative_adapter/figure3"}
"""Whose figures are a drawing."""


def test_every_table_with_figures_is_declared() -> None:
    there = {f"{each['paper']}/{each['table']}" for each in figures()}
    assert there <= set(declared.names())
    assert set(declared.names()) - there == DRAWN
    assert len(figures()) == 1126
    assert {declared.paper(name).arxiv for name in PAPERS} == {"2411.09289", "2411.05877", "2312.03414", "2403.04317"}


def test_every_file_of_the_room_is_a_paper_or_a_suite_of_its_tables() -> None:
    files = {path for path in declared.HERE.glob("*/*.yaml") if path.name != declared.FILE}
    assert files == {file for _, _, file in SUITES}


def test_suites_of_the_miniature_world_are_those_whose_runs_are_committed() -> None:
    """So that `paper X --runs results` shows them; the papers' other words and lengths were not run yet."""
    stored = {run for suite in (ROOT / "results").iterdir() if suite.is_dir() for run in runs(suite)}
    lacking = set()
    for name, scale, file in SUITES:
        if scale == "nano":
            suite = read(file)
            if missing := [run for run in planned(cells(suite)) if run.id not in stored]:
                lacking.add((name, len(missing)))
    assert {name for name, _ in lacking} <= {
        "mac/table5", "streamadapter/table3", "generative_adapter/table5", "ccm/table24", "ccm/table25",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in declared.names() if declared.table(name)[2].claims])
def test_figures_of_a_table_are_found_by_its_lines_and_places(name: str) -> None:
    """A word that no figure has would leave the paper's side empty."""
    of, which, table = declared.table(name)
    for line in table.reported:
        if word := table.reported[line].get("method"):
            assert word in [each["method"] for each in reported(of, which)], line
    if by_model(of, which, {}) or name in DRAWN:
        return
    assert any(
        of_line(of, which, table, place, line, table.metric or table.cost)
        for place in table.places
        for line in named(table)
    )


@pytest.mark.parametrize("name", declared.names())
def test_claims_name_lines_and_places_of_their_table(name: str) -> None:
    of, _, table = declared.table(name)
    lines, places = declared.paper(of).lines_of(table), {place.name for place in table.places}
    for claim in table.claims:
        assert {claim.left, claim.right, claim.floor or claim.left} <= lines.keys()
        assert {*claim.places} <= places
        assert not claim.growth or all(place.profile and place.profile.since for place in table.placed(claim))
    assert all((place.runs is None) != (place.profile is None) for place in table.places)
    assert bool(table.needs) != bool(table.claims)
