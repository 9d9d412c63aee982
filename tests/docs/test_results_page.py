"""What README and documentation show of the results is what the records say."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.conftest import Command
from tests.docs.pages import pages
from tests.places import ROOT


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """Modules of results/."""
    sys.path.insert(0, str(ROOT / "results"))
    try:
        yield {name: importlib.import_module(name) for name in ("english_tables", "figure")}
    finally:
        sys.path.remove(str(ROOT / "results"))


def block(page: str, marker: str) -> str:
    """What stands between the markers."""
    text = pages()[page]
    return text[text.index(f"<!-- {marker} -->\n") : text.index(f"<!-- /{marker} -->")].partition("\n")[2]


def test_real_results_are_what_the_records_say(scripts: dict[str, ModuleType]) -> None:
    english = scripts["english_tables"]
    assert block("README.md", "english") == english.shown_in_readme()
    assert block("docs/results.md", "english") == english.shown_in_docs()
    tables = (english.HERE / "README.md").read_text(encoding="utf-8")
    there = [name for name in english.SUITES if (english.HERE / name).is_dir()]
    assert [name for name in there if english.written(name, english.HERE) not in tables] == []


def test_results_are_what_the_records_say(ttabench: Command) -> None:
    shown = block("docs/results.md", "results")
    suites = re.findall(r"^### (\S+)$", shown, re.M)
    assert suites
    for suite in suites:
        ran = ttabench("compare", "--out", ROOT / "results" / suite, "--format", "markdown")
        rows = [line for line in ran.out.splitlines() if line.startswith("| ")]
        assert rows
        assert all(row in shown for row in rows), suite


def test_the_coverage_shown_is_that_of_the_simulation() -> None:
    shown = block("docs/guide/statistics.md", "coverage")
    assert shown.startswith("| answers | draws |")
    assert (ROOT / "results/bench_coverage.md").read_text("utf-8").endswith(shown)


def test_every_suite_is_named() -> None:
    named = set(re.findall(r"`([\w-]+)`", pages()["docs/results.md"]))
    tables = {path.stem for path in (ROOT / "results").glob("*.md") if not path.stem.startswith("bench_")}
    english = {path.name for path in (ROOT / "results/english").iterdir() if path.is_dir()} - {"quick"}
    ranges = {name for name in tables if name.startswith(("streamingqa-", "squad_seq-", "reductions-"))}
    assert tables | english <= named | ranges


def test_the_figure_shows_what_the_table_says(scripts: dict[str, ModuleType]) -> None:
    figure, table = scripts["figure"], block("README.md", "english").splitlines()
    columns = [cell.strip() for cell in table[0].split("|")[1:-1]]
    drawn = 0
    for line in table[2:]:
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        for column, cell in zip(columns[1:], cells, strict=True):
            if column in figure.COLUMNS:
                point = figure.point(name, column)
                assert f"{point.f1:.1f} ± {point.stderr:.1f}" == cell
                drawn += 1
    assert drawn
    shown = {line for lines in figure.FAMILIES.values() for line in lines}
    assert shown <= set(re.findall(r"^\| (.+?) \|", block("docs/results.md", "english"), re.M))
    assert figure.PLACE.is_file()
