"""What is declared of the papers: every table with figures, suites that name runs, claims whose figures are there."""

from __future__ import annotations

import pytest
from papers import declared
from papers.declared import PAPERS, figures, reported, reported_at

SUITES = [
    (name, scale, file)
    for name in declared.names()
    for scale, file in declared.suites(*name.split("/")).items()
]

DRAWN = {"mac/figure7", "streamadapter/figure5", "generative_adapter/figure3"}
"""Whose figures are a drawing."""
UNNAMED = {"mac/figure3", "mac/figure5", "ccm/table10", "mac/table6"}
"""Whose claims are words: it prints no figures of their lines in the metric of the table."""


def test_every_table_with_figures_is_declared() -> None:
    there = {f"{each['paper']}/{each['table']}" for each in figures()}
    assert there <= set(declared.names())
    assert set(declared.names()) - there == DRAWN
    assert len(figures()) == 1126
    assert {declared.paper(name).arxiv for name in PAPERS} == {
        "2411.09289",
        "2411.05877",
        "2312.03414",
        "2403.04317",
    }


def test_every_file_of_the_room_is_a_paper_or_a_suite_of_its_tables() -> None:
    files = {path for path in declared.HERE.glob("*/*.yaml") if path.name != declared.FILE}
    assert files == {file for _, _, file in SUITES}


@pytest.mark.parametrize(
    "name", [name for name in declared.names() if declared.table(name)[2].claims]
)
def test_figures_of_a_table_are_found_by_its_lines_and_places(name: str) -> None:
    """A word that no figure has would leave the paper's side empty."""
    of, which, table = declared.table(name)
    for line in table.reported:
        if word := table.reported[line].get("method"):
            assert word in [each["method"] for each in reported(of, which)], line
    if table.metric:
        found = [
            row
            for place in table.places
            for line in table.named
            for row in reported_at(of, which, place, line)
        ]
        assert found or name in DRAWN | UNNAMED


@pytest.mark.parametrize("name", declared.names())
def test_claims_name_lines_and_places_of_their_table(name: str) -> None:
    of, which, table = declared.table(name)
    lines, places = declared.paper(of).lines_of(table), {place.name for place in table.places}
    for claim in table.claims:
        assert {claim.left, claim.right} <= lines.keys()
        assert {*claim.places} <= places
        assert not claim.cost or claim.says
    assert bool(table.note) != bool(declared.suites(of, which))
