"""Tests that the tables of README and documentation are computed from the stored runs."""

from __future__ import annotations

import re

import english_keep
import english_tables
import families
import findings
import override

from tests.conftest import Command
from tests.docs.pages import pages
from tests.places import ROOT


def block(page: str, marker: str) -> str:
    """Return the text between the markers."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text[text.index(f"<!-- {marker} -->\n") : text.index(f"<!-- /{marker} -->")].partition(
        "\n"
    )[2]


def test_real_results_are_what_the_records_say() -> None:
    assert block("README.md", "english") == english_keep.shown_in_readme()
    tables = findings.tables()
    assert {marker: block("docs/results.md", marker) for marker in tables} == tables
    assert block("docs/results/real-text.md", "english") == english_keep.shown_in_results()
    shown = f"{english_keep.shown_in_reading()}\n{english_tables.shown_in_reading()}"
    assert block("results/english/reading.md", "tables") == shown
    written = (english_tables.HERE / "README.md").read_text(encoding="utf-8")
    there = [name for name in english_tables.SUITES if (english_tables.HERE / name).is_dir()]
    assert [
        name for name in there if english_tables.written(name, english_tables.HERE) not in written
    ] == []


def test_results_are_what_the_records_say(ttabench: Command) -> None:
    figures, _, trainings = families.tables(ROOT / "results")
    assert block("docs/results.md", "synthetic") == families.summary(ROOT / "results")
    assert block("docs/results/synthetic.md", "results") == figures
    assert block("docs/results/synthetic.md", "sessions") == findings.sessions()
    assert block("docs/results/training.md", "trainings") == trainings
    assert block("docs/results/real-text.md", "override") == override.summary(
        ROOT / "results/override"
    )
    for suite in ("streamingqa-16", "squad_seq-16"):
        ran = ttabench("compare", "--out", ROOT / "results" / suite, "--format", "markdown")
        shown = (ROOT / "results" / f"{suite}.md").read_text(encoding="utf-8")
        rows = [line for line in ran.out.splitlines() if line.startswith("| ")]
        assert rows
        assert all(row in shown for row in rows), suite


def test_the_coverage_shown_is_that_of_the_simulation() -> None:
    shown = block("docs/reference/coverage.md", "coverage")
    assert shown.startswith("| answers | draws |")
    assert shown in (ROOT / "results/bench_coverage.md").read_text("utf-8")


def test_every_suite_is_named() -> None:
    named = set(re.findall(r"`([\w-]+)`", pages()["docs/results/reproduce.md"]))
    tables = {
        path.stem for path in (ROOT / "results").glob("*.md") if not path.stem.startswith("bench_")
    }
    english = {path.name for path in (ROOT / "results/english").iterdir() if path.is_dir()} - {
        "quick"
    }
    ranges = {
        name for name in tables if name.startswith(("streamingqa-", "squad_seq-", "reductions-"))
    }
    assert tables | english <= named | ranges | {"reading"}
