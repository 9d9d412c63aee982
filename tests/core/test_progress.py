"""What people see while they wait."""

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
        "trained, loss 0.3: 30 of 100",
        "trained, loss 0.6: 60 of 100",
        "trained, loss 0.9: 90 of 100",
    ]
