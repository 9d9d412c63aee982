"""Takes docs/page.png, the picture of the README: a block of the page that `ttabench report results/english` writes.

    python results/picture.py

It takes a Chromium and playwright (`pip install 'ttabench[test]'`). The block is that of XQuAD's paragraphs, four of
them read, under smollm2-135m-qa: quality against the bytes kept, and against milliseconds of a query.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from ttabench.cli.app import run

HERE = Path(__file__).resolve().parent
RUNS = HERE / "english"
PLACE = HERE.parent / "docs" / "page.png"
BLOCK = "base smollm2-135m-qa, documents=4"
"""What the heading of the block says."""
WIDTH, HEIGHT = 1200, 584
COLOURS = 256
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def take(page: Path, place: Path, program: str) -> None:
    """Write the picture of the block.

    Args:
        page: the page of `ttabench report`.
        place: the PNG to write.
        program: Chromium.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready=yes]")
        block = opened.locator("article", has=opened.locator("h3", has_text=BLOCK)).first
        for chart in block.locator(".chart").all()[:2]:
            chart.scroll_into_view_if_needed()
            number = chart.get_attribute("data-chart")
            opened.wait_for_selector(f".chart[data-chart='{number}'][data-drawn=yes] svg")
        block.locator("h3").evaluate("heading => heading.scrollIntoView()")
        opened.screenshot(path=place, animations="disabled")
        browser.close()
    with Image.open(place) as picture:
        picture.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
            place, optimize=True
        )


def main() -> None:
    """Write the page, and take its picture."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit(f"There is no Chromium here: none of {', '.join(PROGRAMS)}.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "english.html"
        if code := run(["report", str(RUNS), "-o", str(page), "--samples", "0"]):
            sys.exit(code)
        take(page, PLACE, program)


if __name__ == "__main__":
    main()
