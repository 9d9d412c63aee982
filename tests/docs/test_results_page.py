"""What README and documentation show of the results is what the records say."""

from __future__ import annotations

import re

import english_keep
import english_tables
import families

from tests.conftest import Command
from tests.docs.pages import pages
from tests.places import ROOT


def block(page: str, marker: str) -> str:
    """What stands between the markers."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text[text.index(f"<!-- {marker} -->\n") : text.index(f"<!-- /{marker} -->")].partition("\n")[2]


def test_real_results_are_what_the_records_say() -> None:
    assert block("README.md", "english") == english_keep.shown_in_readme()
    assert block("docs/results.md", "english") == english_keep.shown_in_results()
    shown = f"{english_keep.shown_in_reading()}\n{english_tables.shown_in_reading()}"
    assert block("results/english/reading.md", "tables") == shown
    tables = (english_tables.HERE / "README.md").read_text(encoding="utf-8")
    there = [name for name in english_tables.SUITES if (english_tables.HERE / name).is_dir()]
    assert [name for name in there if english_tables.written(name, english_tables.HERE) not in tables] == []


def test_results_are_what_the_records_say(ttabench: Command) -> None:
    figures, _, trainings = families.tables(ROOT / "results")
    assert block("docs/results.md", "results") == figures + trainings
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
    named = set(re.findall(r"`([\w-]+)`", pages()["docs/results.md"]))
    tables = {path.stem for path in (ROOT / "results").glob("*.md") if not path.stem.startswith("bench_")}
    english = {path.name for path in (ROOT / "results/english").iterdir() if path.is_dir()} - {"quick"}
    ranges = {name for name in tables if name.startswith(("streamingqa-", "squad_seq-", "reductions-"))}
    assert tables | english <= named | ranges | {"reading"}
