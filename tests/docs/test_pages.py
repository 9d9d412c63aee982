"""What pages there are, what they point to, and that no figure in them is made up."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import METHODS, assemble, beside, module_of_docs, pages
from tests.places import ROOT

PART = re.compile(r"^<!-- part (\S+) -->\n(.*?)^<!-- /part -->$", re.M | re.S)
RAW = re.compile(r"^--8<--|^:::|^!!!|\]\[[\w.]+\]", re.M)
"""What only the builder of the site would turn into text."""
NAMED = re.compile(r"\[`([\w.]+)`\]\(([^)#\s:]+\.py)\)")
FIGURE = re.compile(r"\d[\d.]* ± [\d.]*\d")
MEASURED = {"87.5 ± 5.9", "65.6 ± 8.5", "0.0 ± 0.0", "4.4 ± 2.2", "32.6 ± 6.8"}
"""Figures of no suite: what the first lines print (tests/test_readme.py), and one run of SmolLM2 on
SQuAD's articles 36 to 48."""
reference = module_of_docs("reference")
page_of, parts, specs = reference.page_of, reference.parts, reference.specs
TUTORIAL = "docs/guide/tutorial.md"
"""Its figures are those that its commands print (test_tutorial.py)."""


def named(entry: Any) -> Iterator[str]:
    """Pages of the navigation."""
    if isinstance(entry, str):
        yield entry
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from named(inner)


def links(text: str) -> Iterator[str]:
    """Files that a page links to."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            yield target


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `docs/assemble.py` puts together."""
    build = tmp_path_factory.mktemp("build")
    assemble(build).assemble()
    return build


def test_navigation_names_every_page_and_no_other(assembled: Path) -> None:
    there = sorted(
        path.relative_to(assembled / "docs").as_posix()
        for path in (assembled / "docs").rglob("*.md")
    )
    config = tomllib.loads((assembled / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(named(config["nav"])) == there
    for spec in specs():
        assert f"methods/{page_of(spec)}.md" in there


def test_links_between_pages_lead_somewhere_in_the_site(assembled: Path) -> None:
    site = assembled / "docs"
    assert not list(site.rglob("*.py"))
    assert "](../results.md)" in (site / "methods/mac.md").read_text(encoding="utf-8")
    written, linked = {site / place for place in assemble(assembled).RUNS}, set()
    for page in site.rglob("*.md"):
        for target in links(page.read_text(encoding="utf-8")):
            linked.add(there := (page.parent / target).resolve())
            assert there.exists() or there in written, (page, target)
    assert written <= linked, "they are written with the site"


def test_llms_txt_links_to_pages(assembled: Path) -> None:
    text = (assembled / "docs/llms.txt").read_text(encoding="utf-8")
    pages = [target.removesuffix("/") for target in links(text)]
    assert "methods/mac" in pages
    assert all(": " in line for line in text.splitlines() if line.startswith("- "))
    assert all((assembled / f"docs/{page}.md").is_file() for page in pages)


def test_every_method_has_a_page_in_its_room_and_no_page_lacks_its_method() -> None:
    wanted = {page_of(spec) for spec in specs()}
    found = {path.stem: path for path in METHODS.glob("*/*.md")}
    assert set(found) == wanted
    for name, path in found.items():
        text = path.read_text(encoding="utf-8")
        assert [part for part, _ in PART.findall(text)] == [f"methods/{name}"], name
        assert text.startswith(f"# {name}\n")


def test_pages_show_what_the_package_knows_now() -> None:
    shown = {f"{part}.md": text for page in pages().values() for part, text in PART.findall(page)}
    assert shown == parts(), "run: python docs/assemble.py"


def test_a_page_reads_as_it_is_on_a_forge() -> None:
    for page, text in pages().items():
        assert RAW.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)) == [], page


def test_links_to_files_lead_somewhere() -> None:
    for page, text in pages().items():
        assert [target for target in links(text) if not beside(page, target).exists()] == [], page


def test_every_figure_is_one_of_the_tables_of_results() -> None:
    known = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "results").rglob("*.md"))
    for page, text in pages().items():
        if page == TUTORIAL:
            continue
        for figure in FIGURE.findall(text):
            assert figure in MEASURED or re.search(
                rf"(?<![\d.]){re.escape(figure)}(?![\d])", known
            ), (page, figure)


def test_names_in_pages_are_on_the_page_of_the_api() -> None:
    """Each is public, and defined in the file that its link leads to."""
    for page, text in pages().items():
        for name, target in NAMED.findall(text):
            file = beside(page, target).resolve().relative_to(ROOT).with_suffix("")
            module = ".".join(part for part in file.parts if part != "__init__")
            assert reference.public_name(module, name.removeprefix(f"{module}.")), (page, name)
    assert len(NAMED.findall(pages()["docs/api.md"])) > 30


def test_layout_names_every_room_and_no_other() -> None:
    there = {
        path.name
        for path in (ROOT / "ttabench").iterdir()
        if path.is_dir() and not path.name.startswith("__")
    }
    tree = pages()["docs/extend/layout.md"].partition("\nttabench/ ")[2].partition("\ntasks/ ")[0]
    assert set(re.findall(r"^  (\w+)/", tree, re.M)) == there
