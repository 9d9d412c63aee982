"""Tests of the papers' tables: claims name rows and places, and the paper's figures are found."""

from __future__ import annotations

import pytest
from papers.declared import HERE, PAPERS, figures, paper, reported_at

TABLES = [(name, which) for name in PAPERS for which in paper(name).tables]
DRAWN = {
    ("mac", "figure7"),
    ("streamadapter", "figure5"),
    ("generative_adapter", "figure3"),
    ("ccm", "figure8"),
}
"""Tables with figures from a drawing."""
WITHOUT_FIGURES = DRAWN | {
    *(("mac", "figure3"), ("mac", "figure5"), ("ccm", "table10"), ("mac", "table6"))
}
"""Tables without figures of their rows in the metric of the table. Their claims quote the paper."""


def test_every_table_with_figures_is_declared() -> None:
    with_figures = {(row["paper"], row["table"]) for row in figures()}
    assert {*TABLES} - with_figures == DRAWN
    assert with_figures <= {*TABLES}
    assert len(figures()) == 1126


def test_every_suite_belongs_to_a_table() -> None:
    files = {path for path in HERE.glob("*/*.yaml") if path.name != "paper.yaml"}
    of_tables = {(path.parent.name, path.name.partition(".")[0]) for path in files}
    assert of_tables <= {*TABLES}
    assert {key for key in TABLES if not paper(key[0]).tables[key[1]].note} == of_tables


@pytest.mark.parametrize(("name", "which"), TABLES)
def test_claims_name_rows_and_places_of_their_table(name: str, which: str) -> None:
    table = paper(name).tables[which]
    lines, places = {**paper(name).lines, **table.lines}, {place.name for place in table.places}
    for claim in table.claims:
        assert {claim.left, claim.right} <= lines.keys()
        assert {*claim.places} <= places
        assert not claim.cost or claim.says
    found = [
        reported_at(name, which, place, line)
        for place in table.places
        for claim in table.claims
        for line in (claim.left, claim.right)
    ]
    assert any(found) or (name, which) in WITHOUT_FIGURES or not table.metric or not table.claims
