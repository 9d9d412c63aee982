"""What people see while they wait: rates, time left, one bar for one thing, a line while libraries load."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import Command
from tests.test_imports import HEAVY
from ttabench.core import progress
from ttabench.core.progress import CLEAR, Pace
from ttabench.terminal import progress_bars
from ttabench.terminal.progress_bars import Bars, Lines
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


def test_the_rate_and_the_time_left() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.tick(32, 400)
    assert (pace.rate, pace.left(), pace.words()) == (None, None, "")
    clock.now += 8
    pace.tick(64, 400)
    assert (pace.rate, pace.left()) == (4.0, 84.0)
    clock.now += 30
    assert pace.left() == 54.0
    assert pace.words() == "4.0/s, about 50 seconds left"
    clock.now += 1000
    assert pace.left() == 0.0
    pace.tick(400, 400)
    assert "left" not in pace.words()


def test_slow_work_is_told_by_the_time_that_each_takes() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.tick(1, 10)
    clock.now += 720
    pace.tick(2, 10)
    assert pace.words() == "720.0 s each, about 1 hour 40 minutes left"


def test_rates_are_of_the_newest_ticks_and_ticks_without_progress_do_not_count() -> None:
    clock = Clock()
    pace = Pace(clock)
    for done in range(progress.REMEMBERED):
        pace.tick(done, 1000)
        clock.now += 100
    for done in range(progress.REMEMBERED, 2 * progress.REMEMBERED):
        pace.tick(done, 1000)
        clock.now += 1
        pace.tick(done, 1000)
    assert pace.rate == 1.0


def test_where_nobody_watches_a_plain_line_comes_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    tick = Lines(clock)
    for done in range(0, 101, 10):
        tick(f"trained, loss {done / 100}", done, 100)
        clock.now += 10
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "trained, loss 0.3: 30 of 100, 1.0/s, about 1 minute left",
        "trained, loss 0.6: 60 of 100, 1.0/s, about 40 seconds left",
        "trained, loss 0.9: 90 of 100, 1.0/s, about 10 seconds left",
    ]
    tick = Lines(clock, even=False)
    for done in (1, 2):
        clock.now += 40
        tick("rows, mac reads 4k (1 of 5)", done, 6)
    (*_, last) = capsys.readouterr().err.splitlines()
    assert last == "rows, mac reads 4k (1 of 5): 2 of 6", "rows of a profile take longer and longer"


def test_nothing_is_shown_that_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    with progress_bars.progress(enabled=False) as tick:
        tick("answered", 1, 2)
    assert screen.getvalue() == ""


def test_one_bar_for_one_thing_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = watched(monkeypatch), Clock()
    tick = Bars(clock)
    assert screen.getvalue() == "", "no bar before there is something to count"
    for done in range(1, 4):
        tick(f"trained, loss {10 - done}", done, 20)
        clock.now += 2
        tick("judged", done, 3)
    tick._bars.refresh()
    assert len(tick._bars.tasks) == 2
    for part in ("trained, loss 7", "3/20", "2.0 s each 0:00:32 left", "judged", "0:00:00 so far"):
        assert part in screen.getvalue(), part
    tick.stop()
    assert screen.getvalue().endswith("\x1b[2K"), "the bars are taken away"
    tick = Bars(clock, even=False)
    for done in (1, 2):
        clock.now += 40
        tick("rows", done, 6)
    tick._bars.refresh()
    tick.stop()
    shown = screen.getvalue().rpartition("rows")[2]
    assert "2/6" in shown
    assert "so far" in shown
    assert "left" not in shown


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


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_only_terminals_are_told_that_libraries_load(
    terminal: bool, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = watched(monkeypatch)
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    progress.loading("libraries")
    progress.loaded()
    assert bool(screen.getvalue()) == (terminal and term == "xterm")


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


def test_a_profile_has_one_bar() -> None:
    from ttabench.profiling.driver import Manner, _Pass
    from ttabench.profiling.job import Job

    told: list[tuple[str, int, int]] = []
    tick: Callable[[str, int, int], None] = lambda *said: told.append(said)  # noqa: E731
    job = Job(chosen={"icl": {}}, lengths=(32, 64))
    run = _Pass(job, _Folder(), Manner(tick=tick))  # type: ignore[arg-type]
    run._hear("tick", ["icl reads 32", 1, 5])
    run._hear("tick", ["icl answers 32", 2, 5])
    assert told == [("rows, icl reads 32 (1 of 5)", 0, 2), ("rows, icl answers 32 (2 of 5)", 0, 2)]


class _Folder:
    rows: dict[str, object] = {}  # noqa: RUF012
