"""Puts the documentation together in build/: the pages of docs/ and those kept elsewhere; `nox -s docs` builds it.

    python docs/assemble.py --runs && zensical build -f build/zensical.toml --strict

Pages read as they are on any forge. Three things change on the way to the site: links lead from page to page, names of
the code to the page of the API, where each is shown with its docstring, and a link to a folder of records to the page
that `ttabench report` writes of it (`--runs` writes them, a minute's work). What the package knows of itself (settings,
presets, costs) stands in the pages between markers, `<!-- part methods/mac -->`, and is renewed in place first.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import reference

from ttabench.cli.app import run

ROOT = Path(__file__).resolve().parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
CONFIG = "zensical.toml"
OF_METHODS = '    "methods/*.md",\n'
"""The line of the navigation in whose place the pages of all methods stand."""
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
PART = re.compile(r"^(<!-- part (\S+) -->\n).*?^(<!-- /part -->)$", re.M | re.S)
NAMED = re.compile(r"\[`([\w.]+)`\]\(([^)#\s:]+\.py)\)")
"""A name of the code, and the file that has it."""
SHOWN = re.compile(r"^- \[`(ttabench[\w.]+)`\]\([^)\s]+\.py\)$", re.M)
"""A line of the API's page; zensical puts the docstring in its place."""
ELSEWHERE = {
    "reading.md": ROOT / "results/english/reading.md",
    "miniature.md": ROOT / "results/reading.md",
    "claims.md": ROOT / "results/claims.md",
    "submissions.md": ROOT / "results/submissions/README.md",
}
RUNS = {"runs/english.html": ROOT / "results/english", "runs/miniature.html": ROOT / "results/nine"}
"""Pages of runs by their place in the site, and the folders of records that they are of."""
TEXTS = ("runs/miniature.html",)
"""Those that show samples: the miniature world's texts are ours, others' are not passed on."""


def pages() -> dict[str, Path]:
    """Return every page by its place in the site. The page of a method is NAME.md in its folder; the registry gives the order."""
    own = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    rooms = {path.stem: path for path in (ROOT / "ttabench/methods").glob("*/*.md")}
    names = [reference.page_of(spec) for spec in reference.specs()]
    ordered = [*(name for name in names if name in rooms), *sorted(set(rooms) - set(names))]
    return own | ELSEWHERE | {f"methods/{name}.md": rooms[name] for name in ordered}


def renewed(text: str, parts: Mapping[str, str]) -> str:
    """The text of a page with its parts as the package has them now."""
    return PART.sub(lambda found: found[1] + parts[f"{found[2]}.md"] + found[3], text)


def named(page: Path, text: str, api: str) -> str:
    """The text with names of the code as links to where the page of the API shows them."""

    def link(found: re.Match[str]) -> str:
        file = Path(os.path.normpath(page.parent / found[2])).relative_to(ROOT).with_suffix("")
        module = ".".join(part for part in file.parts if part != "__init__")
        return f"[`{found[1]}`]({api}#{reference.public_name(module, found[1])})"

    return NAMED.sub(link, text)


def placed(page: Path, places: dict[Path, str]) -> str:
    """The text of a page, with links as they stand in the site."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[1]))
        return (
            os.path.relpath(places[target], Path(places[page]).parent)
            if target in places
            else found[1]
        )

    text, here = SHOWN.sub(r"::: \1\n", page.read_text(encoding="utf-8")), Path(places[page]).parent
    return LINK.sub(link, named(page, text, os.path.relpath("api.md", here)))


def config(found: dict[str, Path]) -> str:
    """The configuration, its navigation with all methods."""
    text = (ROOT / CONFIG).read_text(encoding="utf-8")
    assert OF_METHODS in text, f"{CONFIG} names no place for the methods"
    named = [
        f'    {{ "{path.stem}" = "{place}" }},\n'
        for place, path in found.items()
        if place.startswith("methods/")
    ]
    return text.replace(OF_METHODS, "".join(named))


def description(page: Path) -> str:
    """Return the first sentence of a page's first paragraph, without links."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")[1:]
    first = next(text for text in paragraphs if text[0].isalnum())
    sentence = re.split(r"(?<=[.!?]) ", " ".join(first.split()))[0]
    sentence = re.sub(r"^After this page you (?:know|can) ", "", sentence)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)
    return plain[0].upper() + plain[1:]


def llms_txt(config: str, found: Mapping[str, Path]) -> str:
    """Return an index of the site for language models (llmstxt.org): the sections of the navigation."""
    project = tomllib.loads(config)["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}."]
    for entry in project["nav"]:
        ((section, pages),) = entry.items()
        named = (item for page in pages if isinstance(page, dict) for item in page.items())
        links = [
            f"- [{name}]({place.removesuffix('.md')}/): {description(found[place])}"
            for name, place in named
        ]
        if links:
            lines += ["", f"## {section}", "", *links]
    return "\n".join(lines) + "\n"


def renew() -> None:
    """Put what the package knows of itself into the pages, in place."""
    parts = reference.parts()
    for page in pages().values():
        text = page.read_text(encoding="utf-8")
        if (now := renewed(text, parts)) != text:
            page.write_text(now, encoding="utf-8")


def assemble() -> None:
    """Write everything below build/, but the pages of runs."""
    found = pages()
    site = BUILD / "docs"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(DOCS, site, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))
    places = {path: place for place, path in (found | RUNS).items()}
    for place, page in found.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(placed(page, places), encoding="utf-8")
    settings = config(found)
    (BUILD / CONFIG).write_text(settings, encoding="utf-8")
    (site / "llms.txt").write_text(llms_txt(settings, found), encoding="utf-8")
    print(f"{len(found)} pages in {BUILD}")


def write_runs() -> None:
    """Write the pages of runs into the site."""
    for place, folder in RUNS.items():
        page = BUILD / "docs" / place
        page.parent.mkdir(parents=True, exist_ok=True)
        samples = [] if place in TEXTS else ["--samples", "0"]
        code = run(["report", str(folder), "-o", str(page), *samples])
        if code:
            sys.exit(code)


if __name__ == "__main__":
    renew()
    assemble()
    if "--runs" in sys.argv[1:]:
        write_runs()
