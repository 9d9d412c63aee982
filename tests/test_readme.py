"""The README keeps its word: short, its set-up commands work, its first lines print the table that it shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import Command
from tests.docs.pages import commands
from tests.places import ROOT
from tests.report.test_compare import compare
from ttabench.cli import app as cli
from ttabench.cli.options import DEFAULT_OUT
from ttabench.lm.model import LM
from ttabench.report.selection import list_runs

README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST = README[README.index("## Set up") : README.index("## Methods")]


@pytest.fixture(scope="module")
def first_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the first lines were typed."""
    typed = re.findall(r"ttabench (eval .*--task streamingqa)$", FIRST, re.M)
    assert len(typed) == 3
    folder = tmp_path_factory.mktemp("first")
    before = torch.are_deterministic_algorithms_enabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert [cli.run(words.split()) for words in typed] == [0, 0, 0]
    torch.use_deterministic_algorithms(before)
    return folder


def test_the_first_lines_print_their_table(
    ttabench: Command, first_lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but what the machine decides: seconds and memory of the process."""
    monkeypatch.chdir(first_lines)
    ran = ttabench("compare --format markdown")
    assert rows(ran.out) == rows(FIRST)


def rows(text: str) -> list[tuple[str, ...]]:
    """Rows of the table of runs, without what the machine decides."""
    lines = [
        line for line in text.splitlines() if line.startswith(("| none |", "| icl |", "| mac |"))
    ]
    found = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines]
    assert len(found) == 3
    return [row[:5] for row in found]


OF_README = {
    line.partition(": ")[2]: words
    for line, words in commands().items()
    if line.startswith("README.md: ")
}
TYPED = {line: words[1:] for line, words in OF_README.items() if words[0] == "ttabench"}
"""Every command of ours in the README, and its words."""
REAL = {line for line in TYPED if "smollm2" in line or "--state mine" in line}
"""Those that take the real English model."""


def type_all(
    ttabench: Command, lines: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What these commands print, typed one after the other in a folder that has the files of docs/."""
    (folder / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(folder)
    printed = {}
    for line in (line for line in TYPED if line in lines):
        ran = ttabench(*TYPED[line])
        assert ran.code == 0, (line, ran.err)
        printed[line] = ran.out
    return printed


def test_every_command_works_as_typed(
    ttabench: Command, first_lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first lines find their runs."""
    shutil.copytree(first_lines, tmp_path, dirs_exist_ok=True)
    printed = type_all(ttabench, {*TYPED} - REAL, tmp_path, monkeypatch)
    assert len(printed) > len(REAL)


def test_the_state_of_the_example_helps(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind the command are its figures: the own state above another text's and none."""
    (line,) = [line for line in TYPED if "--swap-state" in line]
    shown = [float(value) for value in re.findall(r"(?:own|swapped|empty) (\d+\.\d)", line)]
    monkeypatch.chdir(tmp_path)
    assert ttabench(*TYPED[line]).code == 0
    assert ttabench("compare --format csv").code == 0
    entries = {
        entry.state_of: 100 * entry.value for entry in compare(list_runs(DEFAULT_OUT)).method_rows
    }
    assert [round(entries[whose], 1) for whose in ("own", "other", "none")] == shown
    assert shown[0] > max(shown[1:])


@pytest.mark.english
def test_commands_of_real_text_work_as_typed(
    smollm2: LM,  # makes the copy that they load
    ttabench: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = type_all(ttabench, REAL, tmp_path, monkeypatch)
    (asked,) = [out for line, out in printed.items() if line.startswith(".venv/bin/ttabench ask")]
    rows = [line.split("│")[1:4] for line in asked.splitlines() if line.count("│") == 4]
    answers = {method.strip(): answer.strip() for _, method, answer in rows}
    assert answers["templora"] == answers["icl"] == "Tomas Brandt"
    assert answers["none"] != "Tomas Brandt"
    assert (tmp_path / "mine/peft").is_dir()
