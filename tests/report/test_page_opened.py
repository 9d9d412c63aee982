"""The page in a browser: nothing is fetched, nothing fails, and it can be sorted, filtered and opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import NARROW, WIDE, Opened, browsed
from tests.report.test_page import HOSTILE, answering
from tests.report.test_plots import stepped
from ttabench.report.compare import compare
from ttabench.report.page.build import write_page


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A page of a few runs, with hostile texts, and of one block by step."""
    answers = [
        ("none", {"a": ("Bob", 0.0), "b": (HOSTILE, 0.0), "c": ("Bob", 0.0)}),
        ("icl", {"a": ("Ada", 1.0), "b": ("Ada", 1.0), "c": ("Ada", 1.0)}),
        ("mac", {"a": (HOSTILE, 1.0), "b": ("Bob", 0.0), "c": ("Ada", 1.0)}),
        ("lora", {"a": ("Bob", 0.0), "b": ("Bob", 0.0), "c": (HOSTILE, 0.5)}),
    ]
    folders = [answering(tmp_path, f"r{place}", own, method, HOSTILE) for place, (method, own) in enumerate(answers)]
    folders += [
        stepped(tmp_path, f"s{place}", {1: (0.2, 0.1), 4: (0.4, 0.1)}, method=method, task="u")
        for place, method in enumerate(["mac", "lora"])
    ]
    path = tmp_path / "report.html"
    write_page(compare(folders), path)
    return path


@pytest.fixture
def opened(written: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    width, scheme = getattr(request, "param", (WIDE, "light"))
    with browsed(written, width, scheme) as found:
        yield found


@pytest.mark.parametrize("opened", [(WIDE, "light"), (NARROW, "dark")], indirect=True, ids=["wide", "narrow and dark"])
def test_it_can_be_used_and_nothing_leaves_it(opened: Opened) -> None:
    page = opened.page
    page.locator("#lines").scroll_into_view_if_needed()
    page.wait_for_selector("#lines.dataTable")
    head = page.locator("#lines thead th", has_text="value")
    before = opened.column("lines", 4)
    head.click()
    page.wait_for_selector("#lines thead th[aria-sort=ascending]")
    assert opened.column("lines", 4) == sorted(before, key=lambda text: float(text.partition(" ")[0]))
    head.locator("[tabindex='0']").press("Enter")
    page.wait_for_selector("#lines thead th[aria-sort=descending]")
    assert opened.column("lines", 4)[0].startswith("100.0")
    head.locator("[tabindex='0']").press("Space")
    page.wait_for_selector("#lines thead th[aria-sort=descending]", state="detached")
    assert opened.column("lines", 4) == before, "the third time as it was, by Space, too"

    page.locator("#lines_wrapper input[type=search]").fill("lora u")
    assert opened.column("lines", 2) == ["lora"]

    page.locator("#run-table").scroll_into_view_if_needed()
    page.wait_for_selector("#run-table.dataTable")
    page.locator("#run-table summary", has_text="r2").first.click()
    assert "ttabench eval --method mac" in page.locator("dd.command:visible").inner_text()

    sample = page.locator(".sample").first
    assert not sample.locator("pre").first.is_visible()
    sample.locator("summary").press("Enter")
    assert "<script>alert(1)</script>" in sample.locator("pre").first.inner_text()
    assert "<img src=x onerror=alert(2)>" in sample.inner_text()

    charts = page.locator("#blocks .chart")
    assert charts.count() == 5
    for place in range(charts.count()):
        charts.nth(place).scroll_into_view_if_needed()
        page.wait_for_selector(f".chart[data-chart='{place}'][data-drawn=yes] svg")
    assert charts.nth(4).locator("path[aria-roledescription='line mark']").count() == 2

    dark = page.evaluate("document.documentElement.classList.contains('dark')")
    page.locator("#theme").press("Space")
    assert page.evaluate("document.documentElement.classList.contains('dark')") != dark
    assert page.locator("#theme").get_attribute("aria-pressed") == str(not dark).lower()

    opened.see_that_it_is_calm()


def test_it_fetches_nothing_even_where_it_is_told_to(opened: Opened) -> None:
    """Its policy holds: a script that a text had smuggled in would not run, and could ask nobody."""
    told = opened.page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "window.smuggled = true";
            document.body.append(script);
            const asked = await fetch("http://127.0.0.1:9/").then(() => "fetched", () => "refused");
            return [Boolean(window.smuggled), asked];
        }"""
    )
    assert told == [False, "refused"]
    assert any("Content Security Policy" in line for line in opened.complaints)
    assert not any("127.0.0.1" in url for url in opened.requests)
