"""The README keeps its word: its commands parse, its tree is the tree, its test command is what CI runs."""

from __future__ import annotations

import importlib
import re
import shlex
import sys

import pytest
import typer.main

from tests.conftest import Command
from tests.places import ROOT
from ttabench.cli.app import app

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.S)
COMMANDS = [
    shlex.split(line[line.index("ttabench ") :], comments=True)[1:]
    for block in BLOCKS
    for line in block.splitlines()
    if "ttabench " in line
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_parses(words: list[str]) -> None:
    group = typer.main.get_command(app)
    context = group.make_context("ttabench", list(words), resilient_parsing=False)
    name, *rest = words
    assert not name.startswith("-")
    command = group.get_command(context, name)  # type: ignore[attr-defined]
    assert command is not None, name
    command.make_context(name, rest, parent=context)


def test_ci_runs_the_test_command_and_nothing_else() -> None:
    (last,) = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "nox" in line]
    assert f"\n{last}\n" in README


def test_the_tree_names_every_room_and_no_other() -> None:
    tree = README[README.index("ttabench/            the package") : README.index("\ntasks/ ")]
    there = {path.name for path in (ROOT / "ttabench").iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert set(re.findall(r"^  (\w+)/", tree, re.M)) == there


def test_the_two_set_up_commands_are_one_line_each() -> None:
    setup = README[README.index("## Set up") : README.index("## First lines")]
    blocks = re.findall(r"```bash\n(.*?)```", setup, re.S)
    assert [block.count("\n") for block in blocks] == [1, 1]
    assert all("-c constraints.txt" in block for block in blocks)


def test_real_results_are_what_the_records_say() -> None:
    block = README[README.index("<!-- english -->\n") : README.index("<!-- /english -->")]
    sys.path.insert(0, str(ROOT / "results"))
    try:
        english = importlib.import_module("english_tables")
        assert block == f"<!-- english -->\n{english.shown_in_readme()}"
        tables = (english.HERE / "README.md").read_text(encoding="utf-8")
        there = [name for name in english.SUITES if (english.HERE / name).is_dir()]
        assert [name for name in there if english.written(name, english.HERE) not in tables] == []
    finally:
        sys.path.remove(str(ROOT / "results"))


def test_results_are_what_the_records_say(ttabench: Command) -> None:
    block = README[README.index("<!-- results -->") : README.index("<!-- /results -->")]
    suites = re.findall(r"^### (\S+)$", block, re.M)
    assert suites
    for suite in suites:
        ran = ttabench("compare", "--out", ROOT / "results" / suite, "--format", "markdown")
        rows = [line for line in ran.out.splitlines() if line.startswith("| ")]
        assert rows
        assert all(row in block for row in rows), suite
