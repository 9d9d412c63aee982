"""The commands of the tutorial print the figures that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.docs.pages import commands, pages

PAGE = "docs/guide/tutorial.md"
TYPED = [words[1:] for line, words in commands().items() if line.startswith(f"{PAGE}: ttabench")]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of all Markdown tables, without heads."""
    lines = re.findall(r"^\| (?!---)(.*) \|$", text, re.M)
    return [[cell.strip(" *") for cell in line.split("|")] for line in lines]


def test_the_tutorial_shows_what_its_commands_print(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: list[list[str]] = []
    for words in TYPED:
        if words[0] in ("sweep", "eval"):
            ran = ttabench(*words, "--quiet")
        elif words[0] == "compare":
            ran = ttabench(*words, "--format", "markdown")
        else:  # what they show differs from machine to machine
            continue
        assert ran.code == 0, (words, ran.err)
        printed += rows(ran.out)
    ran = ttabench("compare --method mac --format markdown")
    printed += rows(ran.out)
    shown = [row for row in rows(pages()[PAGE]) if any(cell[:1].isdigit() for cell in row)]
    assert len(shown) >= 9
    for row in shown:
        figures = {cell for cell in row[1:] if cell}
        assert any(figures <= set(other) for other in printed), row
