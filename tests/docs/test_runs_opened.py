"""The pages of this repository's own runs, as the documentation has them, in a browser."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.pages import assemble, pages
from tests.places import ROOT
from tests.report.browser import browsed, browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages by their place in the site."""
    module = assemble(tmp_path_factory.mktemp("build"))
    module.write_runs()
    return {place: module.BUILD / "docs" / place for place in module.RUNS}


def test_runs_on_real_text_are_shown_and_nothing_leaves_the_page(written: dict[str, Path]) -> None:
    with browsed(written["runs/english.html"]) as opened:
        page = opened.page
        assert re.fullmatch(r"\d{3} runs compared", page.locator("h1").inner_text())
        page.locator("#lines").scroll_into_view_if_needed()
        page.wait_for_selector("#lines.dataTable")
        page.locator("#lines_wrapper input[type=search]").fill("pg19 templora")
        shown = opened.column("lines", 2)
        assert shown
        assert all(text.startswith("templora") for text in shown)
        for chart in page.locator("#blocks .chart").all()[:3]:
            chart.scroll_into_view_if_needed()
            page.wait_for_selector(f".chart[data-chart='{chart.get_attribute('data-chart')}'][data-drawn=yes] svg")
        page.locator(".index a").first.evaluate("link => link.closest('details').open = true")
        page.locator(".index a", has_text="squad").first.click()
        opened.see_that_it_is_calm()
        assert written["runs/english.html"].stat().st_size < 6e6
        assert page.locator(".sample").count() == 0, "others' texts are not passed on"


def test_the_picture_of_the_readme_can_be_taken_again(
    written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fonts differ from machine to machine: the same size, and no blank paper."""
    program = browser()
    monkeypatch.syspath_prepend(ROOT / "results")
    picture = import_module("picture")
    picture.take(written["runs/english.html"], tmp_path / "page.png", program)
    for place in (tmp_path / "page.png", picture.PLACE):
        assert place.stat().st_size < 150_000
        with Image.open(place) as taken:
            assert taken.size == (picture.WIDTH, picture.HEIGHT)
            reds = sum(count for count, (r, g, b) in taken.convert("RGB").getcolors(1 << 24) if r > 200 > g + 60 > b)
            assert reds > 100, "marks of methods have their colours"
    assert f"]({picture.PLACE.relative_to(ROOT)})" in pages()["README.md"]


def test_runs_of_the_miniature_world_have_samples_to_open(written: dict[str, Path]) -> None:
    with browsed(written["runs/miniature.html"]) as opened:
        sample = opened.page.locator(".sample").first
        sample.locator("summary").click()
        assert sample.locator("pre").first.inner_text().strip()
        assert len(sample.locator("tbody tr").all()) > 2
        opened.see_that_it_is_calm()
        assert written["runs/miniature.html"].stat().st_size < 20e6
