"""What people see while they wait: time left, one bar for one thing, a line while libraries load."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import Command
from tests.test_imports import HEAVY
from ttabench.core import progress
from ttabench.core.progress import CLEAR, in_words
from ttabench.terminal import progress_bars
from ttabench.terminal.progress_bars import Lines
from ttabench.terminal.render import console


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Standard error is a terminal for the rest of the test."""
    found = Screen()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_times_are_said_to_two_units_at_most() -> None:
    assert [in_words(seconds) for seconds in (0.2, 58, 5000)] == ["1 second", "1 minute", "1 hour 20 minutes"]


def test_where_nobody_watches_a_plain_line_comes_every_half_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress_bars, "time", SimpleNamespace(monotonic=clock))
    tick = Lines()
    for done in range(0, 101, 10):
        tick(f"trained, loss {done / 100}", done, 100)
        clock.now += 10
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "trained, loss 0.3: 30 of 100, about 1 minute left",
        "trained, loss 0.6: 60 of 100, about 40 seconds left",
        "trained, loss 0.9: 90 of 100, about 10 seconds left",
    ]
    tick = Lines(even=False)
    for done in (1, 2):
        clock.now += 40
        tick("rows, mac reads 4k (1 of 5)", done, 6)
    (*_, last) = capsys.readouterr().err.splitlines()
    assert last == "rows, mac reads 4k (1 of 5): 2 of 6", "rows of a profile take longer and longer"


def test_the_line_while_libraries_load_goes_when_something_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    for show in (lambda: console(stderr=True), progress.loaded, lambda: _bar()):
        progress.loading("libraries and nano")
        assert screen.getvalue().endswith("Loading libraries and nano ...")
        show()
        assert CLEAR in screen.getvalue().rpartition("nano ...")[2]
    before = screen.getvalue()
    progress.loaded()
    assert screen.getvalue() == before, "taken away once"


def _bar() -> None:
    with progress_bars.progress(enabled=True) as tick:
        tick("read", 1, 2)


@pytest.mark.parametrize("more", [["--json"], ["--quiet"], []], ids=["json", "quiet", "plain"])
def test_machines_are_told_nothing(
    more: list[str], ttabench: Command, common: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("ttabench.core.progress.loading", told.append)
    ran = ttabench("eval", "--method", "none", *common, "--limit", 1, *more)
    assert ran.code == 0, ran.err
    assert told == ([] if more else ["libraries and tiny"])


@pytest.mark.parametrize(
    "command", ["eval --method icll", "train --method icll", "adapt --method icll", "profile --methods icll"]
)
def test_the_line_comes_before_anything_heavy_is_imported(command: str) -> None:
    code = (
        "import sys\nfrom ttabench.cli import app, profile\nfrom ttabench.core import progress\n"
        "seen = []\n"
        f"progress.loading = profile.loading = lambda what: seen.append([n for n in {HEAVY!r} if n in sys.modules])\n"
        f"code = app.run({command.split()!r})\n"
        "assert (code, seen) == (2, [[]]), (code, seen)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
