"""Every template of `ttabench new` works as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tests.conftest import Command, error_line
from tests.packages import install
from ttabench.cli.new import NEXT_COMMANDS, new
from ttabench.core.registry import plugin_entry_points

KINDS = sorted(set(NEXT_COMMANDS) - {"package"})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_commands_of_a_template_run(ttabench: Command, folder: Path, kind: str) -> None:
    made = ttabench("new", kind, "tail_end")
    assert {*made.out.split()} == {path.name for path in folder.iterdir()}
    commands = [line.partition("ttabench ")[2] for line in made.err.splitlines()]
    assert len(commands) == len(NEXT_COMMANDS[kind])
    for command in commands:
        limits = ("--limit", 2, "--quiet") if command.startswith("eval") else ()
        done = ttabench(*shlex.split(command), *limits)
        assert done.code == 0, done.err
    assert "tail_end." in error_line(ttabench("new", kind, "tail_end"))


def test_tests_of_a_package_pass(
    ttabench: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ttabench("new package tail_end").code == 0
    install(folder / "tail_end")
    monkeypatch.syspath_prepend(folder / "tail_end")
    plugin_entry_points.cache_clear()
    try:
        assert pytest.main(["-q", "-p", "no:cacheprovider", "tail_end"]) == 0
    finally:
        plugin_entry_points.cache_clear()


@pytest.mark.parametrize("name", ["Tail", "icl", "f1", "streamingqa", "a-b"])
def test_names_that_are_refused(ttabench: Command, name: str) -> None:
    assert f"{name!r}" in error_line(ttabench("new method", name))


def test_every_kind_has_commands() -> None:
    kind = get_args(get_type_hints(new)["kind"])
    assert set(kind) == set(NEXT_COMMANDS)
