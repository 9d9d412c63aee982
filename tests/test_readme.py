"""The README keeps its word: short, its set-up commands work, its first lines print the table that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1200


def test_it_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_ci_runs_the_test_command_and_nothing_else() -> None:
    (last,) = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "nox" in line]
    assert f"\n{last}\n" in README


def test_the_two_set_up_commands_are_one_line_each() -> None:
    setup = README[README.index("## Set up") : README.index("## First lines")]
    blocks = re.findall(r"```bash\n(.*?)```", setup, re.S)
    assert [block.count("\n") for block in blocks] == [1, 1]
    assert all("-c constraints.txt" in block for block in blocks)


def test_the_first_lines_print_their_table(ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what the machine decides: seconds and memory of the process."""
    lines = README[README.index("## Set up") : README.index("## Methods")]
    typed = re.findall(r"ttabench (eval .*--task streamingqa)$", lines, re.M)
    assert len(typed) == 3
    monkeypatch.chdir(tmp_path)
    for words in typed:
        assert ttabench(*words.split()).code == 0
    ran = ttabench("compare", "--format", "markdown")
    assert rows(ran.out) == rows(lines)
    assert f"> {ran.out.splitlines()[0]}\n" in lines, "the first line, too"


def rows(text: str) -> list[tuple[str, ...]]:
    """Rows of the table of runs, without what the machine decides."""
    lines = [line for line in text.splitlines() if line.startswith(("| none |", "| icl |", "| mac |"))]
    found = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines]
    assert len(found) == 3
    return [row[:4] for row in found]
