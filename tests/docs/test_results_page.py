"""Tests that the tables of README and documentation are computed from the stored runs."""

from __future__ import annotations

import re

import english
import make
import pytest

from tests.conftest import Command
from tests.docs.pages import pages
from tests.places import ROOT

TABLES = {**make.TABLES, **make.ENGLISH_TABLES}


@pytest.mark.parametrize("place", TABLES, ids=lambda place: f"{place[0].name} {place[1]}")
def test_tables_match_the_records(place: tuple[make.Path, str]) -> None:
    page, marker = place
    text = page.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")[2]
    assert text.partition(f"<!-- /{marker} -->")[0] == TABLES[place]()


def test_the_page_of_real_text_matches_the_records() -> None:
    assert (english.HERE / "README.md").read_text(encoding="utf-8") == english.readme()


@pytest.mark.parametrize("suite", ["streamingqa-16", "squad_seq-16"])
def test_pages_have_the_rows_of_compare(suite: str, ttabench: Command) -> None:
    ran = ttabench("compare", "--out", ROOT / "results" / suite, "--format", "markdown")
    shown = (ROOT / "results" / f"{suite}.md").read_text(encoding="utf-8")
    rows = [line for line in ran.out.splitlines() if line.startswith("| ")]
    assert rows
    assert all(row in shown for row in rows)


def test_every_suite_is_named() -> None:
    named = set(re.findall(r"`([\w-]+)`", pages()["docs/results/reproduce.md"]))
    tables = {
        path.stem for path in (ROOT / "results").glob("*.md") if not path.stem.startswith("bench_")
    }
    real = {path.name for path in english.HERE.iterdir() if path.is_dir()} - {*make.TRIALS}
    ranges = {
        name for name in tables if name.startswith(("streamingqa-", "squad_seq-", "reductions-"))
    }
    assert tables | real <= named | ranges | {"reading"}
