"""What is printed and written never harms: no character is obeyed by a terminal, no link is written through."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import ClassVar

import pytest

from ttabench.cli import app as cli
from ttabench.core.errors import printable
from ttabench.terminal import render

NASTY = "a\x1b[2J\x1b]0;title\x07b\x9b31m\r\u202ec"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\x9b31m\x0d\u202ec"
TABLE = render.Table(title=NASTY, columns=(NASTY,), rows=((NASTY,),), data=({NASTY: NASTY},), caption=NASTY)


class Terminal(io.TextIOWrapper):
    """Standard output or error that somebody watches."""

    watched: ClassVar[bool] = True

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return self.watched

    def seen(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


class Pipe(Terminal):
    watched = False


Set = Callable[[Terminal], Terminal]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Set:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")

    def put(stream: Terminal) -> Terminal:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return put


def test_control_characters_become_visible() -> None:
    assert printable(NASTY) == SHOWN
    assert printable("± é 漢\t\n") == "± é 漢\t\n"


@pytest.mark.parametrize("form", render.FORMATS)
def test_no_form_of_a_table_commands_a_terminal(output: Set, form: render.Format) -> None:
    stream = output(Terminal())
    render.show([TABLE], form)
    seen = stream.seen()
    assert not set(seen) & set("\x1b\x07\x9b\r\u202e"), seen
    assert "2J" in seen


def test_nor_do_remarks_paths_and_complaints(output: Set) -> None:
    stream = output(Terminal())
    render.remark(NASTY)
    render.print_line(NASTY)
    assert cli.run(["compare", f"{NASTY}.json"]) == 2
    seen = stream.seen().replace("\x1b[31m", "").replace("\x1b[0m", "")  # the red of a complaint
    assert not set(seen) & set("\x1b\x07\x9b\u202e"), seen
    assert seen.count("2J") == 3


def test_other_programs_get_what_is_meant(output: Set) -> None:
    stream = output(Pipe())
    render.print_line(NASTY)
    assert stream.seen() == NASTY + "\n"
    stream = output(Pipe())
    render.show([TABLE], "json")
    assert json.loads(stream.seen()) == {NASTY: [{NASTY: NASTY}]}
