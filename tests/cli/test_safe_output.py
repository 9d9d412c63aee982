"""What is printed never harms: no character is obeyed by a terminal; other programs get what is meant."""

from __future__ import annotations

import json
import sys
from typing import get_args

import pytest

from ttabench.cli import app as cli
from ttabench.core.errors import escape_control_characters
from ttabench.terminal import render

NASTY = "a\x1b[2J\x1b]0;title\x07b\x9b31m\r\u202ec"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\x9b31m\r\u202ec"
TABLE = render.Table(
    title=NASTY, columns=(NASTY,), rows=((NASTY,),), data=({NASTY: NASTY},), caption=NASTY
)
Captured = pytest.CaptureFixture[str]


def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on somebody watches standard output and error."""
    monkeypatch.setenv("TERM", "dumb")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def test_control_characters_become_visible() -> None:
    assert escape_control_characters(NASTY) == SHOWN
    assert escape_control_characters("± é 漢\t\n") == "± é 漢\t\n"


@pytest.mark.parametrize("form", get_args(render.Format))
def test_no_form_of_a_table_commands_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, form: render.Format
) -> None:
    watched(monkeypatch)
    render.print_tables([TABLE], form)
    seen = capsys.readouterr().out
    assert not set(seen) & set("\x1b\x07\x9b\r\u202e"), seen
    assert "2J" in seen


def test_nor_do_notes_paths_and_complaints(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    watched(monkeypatch)
    render.print_note(NASTY)
    render.print_line(NASTY)
    assert cli.run(["compare", f"{NASTY}.json"]) == 2
    seen = (
        "".join(capsys.readouterr()).replace("\x1b[31m", "").replace("\x1b[0m", "")
    )  # the red of a complaint
    assert not set(seen) & set("\x1b\x07\x9b\u202e"), seen
    assert seen.count("2J") == 3


def test_other_programs_get_what_is_meant(capsys: Captured) -> None:
    render.print_line(NASTY)
    assert capsys.readouterr().out == NASTY + "\n"
    render.print_tables([TABLE], "json")
    assert json.loads(capsys.readouterr().out) == {NASTY: [{NASTY: NASTY}]}
