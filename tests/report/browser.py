"""A page in headless Chromium, and what goes on in it: requests, complaints of the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = 1280, 400
WAIT = 30_000
"""Milliseconds until something that has to appear is missed: machines of tests are busy."""


@dataclass
class Opened:
    """A page in a browser, and what went on in it."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def column(self, table: str, place: int) -> list[str]:
        """The texts of a column, by its place from 1."""
        texts = self.page.locator(f"#{table} > tbody > tr > :nth-child({place})").all_inner_texts()
        return [text.strip() for text in texts]

    def see_that_it_is_calm(self) -> None:
        """It fits the window, nothing failed, and nothing but the page itself was asked for."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it has to be moved sideways"
        self.page.wait_for_timeout(200)
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [self.address]


def browser() -> str:
    """Chromium; skips where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    return program


@contextmanager
def browsed(path: Path, width: int = WIDE, scheme: str = "light") -> Iterator[Opened]:
    """A page in a window of this width, under a system that is light or dark; skips where there is no browser."""
    program = browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = opened.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(WAIT)
        page = context.new_page()
        seen = Opened(page, path.as_uri())
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (seen.complaints.append(dialog.message), dialog.dismiss()))
        page.route("**/*", lambda route: route.continue_() if route.request.url == seen.address else route.abort())
        page.goto(seen.address)
        page.wait_for_selector("html[data-ready=yes]")
        yield seen
        opened.close()
