"""The page in a browser: nothing is fetched, nothing fails, and it can be sorted, filtered and opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_compare import compare, stepped
from tests.report.test_page import HOSTILE, answering
from ttabench.report import page as report

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WAIT = 30_000
"""Milliseconds until something that has to appear is missed: machines of tests are busy."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Any, list[str]]]:
    """A page of a few runs, with hostile texts, and of one block by step, in headless Chromium; and what its console
    complains of. What it asks for beside itself is refused, and a complaint. Skips where there is no browser."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    answers = [
        ("none", {"a": ("Bob", 0.0), "b": (HOSTILE, 0.0), "c": ("Bob", 0.0)}),
        ("icl", {"a": ("Ada", 1.0), "b": ("Ada", 1.0), "c": ("Ada", 1.0)}),
        ("mac", {"a": (HOSTILE, 1.0), "b": ("Bob", 0.0), "c": ("Ada", 1.0)}),
        ("lora", {"a": ("Bob", 0.0), "b": ("Bob", 0.0), "c": (HOSTILE, 0.5)}),
    ]
    folders = [
        answering(tmp_path, f"r{place}", own, method, HOSTILE)
        for place, (method, own) in enumerate(answers)
    ]
    folders += [
        stepped(tmp_path, name, {1: 0.2, 4: 0.4}, method=name, task="u") for name in ("mac", "lora")
    ]
    path = tmp_path / "report.html"
    path.write_text(report.page(compare(folders)), encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page, complaints = browser.new_page(viewport={"width": 1280, "height": 800}), list[str]()
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.route(
            "**/*",
            lambda route: (
                route.continue_() if route.request.url == path.as_uri() else route.abort()
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        yield page, complaints
        browser.close()


def test_it_can_be_used_and_nothing_leaves_it(opened: tuple[Any, list[str]]) -> None:
    page, complaints = opened

    def column(place: int) -> list[str]:
        texts = page.locator(f"#lines > tbody > tr > :nth-child({place})").all_inner_texts()
        return [text.strip() for text in texts]

    page.locator("#lines").scroll_into_view_if_needed()
    page.wait_for_selector("#lines.dataTable")
    before = column(4)
    page.locator("#lines thead th", has_text="value").click()
    page.wait_for_selector("#lines thead th[aria-sort=ascending]")
    assert column(4) == sorted(before, key=lambda text: float(text.partition(" ")[0]))
    page.locator("#lines_wrapper input[type=search]").fill("lora u")
    assert column(2) == ["lora"]
    sample = page.locator(".sample").first
    sample.locator("summary").press("Enter")
    assert "<script>alert(1)</script>" in sample.locator("pre").first.inner_text()
    assert "<img src=x onerror=alert(2)>" in sample.inner_text()
    charts = page.locator("#blocks .chart")
    assert charts.count() == 5
    for place in range(charts.count()):
        charts.nth(place).scroll_into_view_if_needed()
        page.wait_for_selector(f".chart[data-chart='{place}'][data-drawn=yes] svg")
    assert complaints == []


def test_it_fetches_nothing_even_where_it_is_reported_to(opened: tuple[Any, list[str]]) -> None:
    """Its policy holds: a script that a text had smuggled in would not run, and could ask nobody."""
    page, complaints = opened
    told = page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "window.smuggled = true";
            document.body.append(script);
            const asked = await fetch("http://127.0.0.1:9/").then(() => "fetched", () => "refused");
            return [Boolean(window.smuggled), asked];
        }"""
    )
    assert told == [False, "refused"]
    assert any("Content Security Policy" in line for line in complaints)
