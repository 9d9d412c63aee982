"""The README, the pages of docs/ and those of methods, and the blocks of code in them."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tests.places import ROOT

DOCS, METHODS = ROOT / "docs", ROOT / "ttabench/methods"
FENCE = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.M | re.S
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    title: str
    code: str


def pages() -> dict[str, str]:
    """Text by path below the root."""
    paths = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(DOCS.rglob("*.md")),
        *sorted(METHODS.glob("*/*.md")),
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def blocks(language: str = "") -> Iterator[Block]:
    """The blocks of all pages, or those of one language."""
    for page, text in pages().items():
        for found in FENCE.finditer(text):
            if language in ("", found["language"]):
                yield Block(page, found["language"], found["title"] or "", found["code"])


def commands() -> dict[str, list[str]]:
    """What is typed in blocks of the shell, by page and line: the words of every command."""
    found = {}
    for block in blocks("bash"):
        for line in block.code.splitlines():
            for part in line.split(" && "):
                words = shlex.split(part, comments=True)
                if words:
                    found[f"{block.page}: {part.strip()}"] = [
                        words[0].removeprefix(".venv/bin/"),
                        *words[1:],
                    ]
    return found


def beside(page: str, target: str) -> Path:
    """The file that a link of a page points to."""
    return (ROOT / page).parent / target


def module_of_docs(name: str) -> ModuleType:
    """A module of docs/, which may import those beside it."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def assemble(build: Path) -> ModuleType:
    """The module docs/assemble.py, which is to write below this folder."""
    module = module_of_docs("assemble")
    module.BUILD = build  # type: ignore[attr-defined]
    return module
