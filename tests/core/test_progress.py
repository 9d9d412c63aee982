"""What people see while they wait: the time left, a line for one thing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ttabench.terminal import progress_bars
from ttabench.terminal.progress_bars import Lines


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
        "trained, loss 0.3: 30 of 100, about 0:01:10 left",
        "trained, loss 0.6: 60 of 100, about 0:00:40 left",
        "trained, loss 0.9: 90 of 100, about 0:00:10 left",
    ]
    tick = Lines(even=False)
    for done in (1, 2):
        clock.now += 40
        tick("rows, mac reads 4k (1 of 5)", done, 6)
    (*_, last) = capsys.readouterr().err.splitlines()
    assert last == "rows, mac reads 4k (1 of 5): 2 of 6", "rows of a profile take longer and longer"
