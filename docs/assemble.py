"""Puts the documentation together in build/: the pages of docs/, those that methods keep in their rooms, and what the
package knows of itself; `nox -s docs` builds it.

    python docs/assemble.py && zensical build -f build/zensical.toml --strict
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ttabench.report import reference

ROOT = Path(__file__).resolve().parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
CONFIG = "zensical.toml"
OF_METHODS = '    "methods/*.md",\n'
"""The line of the navigation in whose place the pages of all methods stand."""
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def pages() -> dict[str, Path]:
    """Every page by its place in the site; a method's is NAME.md in its room. The registry says in which order."""
    own = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    rooms = {path.stem: path for path in (ROOT / "ttabench/methods").glob("*/*.md")}
    names = [reference.page_of(spec) for spec in reference.specs()]
    ordered = [*(name for name in names if name in rooms), *sorted(set(rooms) - set(names))]
    return own | {f"methods/{name}.md": rooms[name] for name in ordered}


def placed(page: Path, places: dict[Path, str]) -> str:
    """The text of a page, with links between pages as they stand in the site."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[1]))
        return os.path.relpath(places[target], Path(places[page]).parent) if target in places else found[1]

    return LINK.sub(link, page.read_text(encoding="utf-8"))


def config(found: dict[str, Path]) -> str:
    """The configuration, its navigation with all methods."""
    text = (ROOT / CONFIG).read_text(encoding="utf-8")
    assert OF_METHODS in text, f"{CONFIG} names no place for the methods"
    named = [f'    {{ "{path.stem}" = "{place}" }},\n' for place, path in found.items() if place.startswith("methods/")]
    return text.replace(OF_METHODS, "".join(named))


def main() -> None:
    """Write everything below build/."""
    site = BUILD / "docs"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(DOCS, site, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))
    found = pages()
    places = {path: place for place, path in found.items()}
    for page, place in places.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(placed(page, places), encoding="utf-8")
    (BUILD / CONFIG).write_text(config(found), encoding="utf-8")
    print(f"{len(list(reference.write(BUILD / 'reference')))} parts and {len(found)} pages in {BUILD}")


if __name__ == "__main__":
    main()
