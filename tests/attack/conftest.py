"""How much of the attacks is run, and the counts of their ends that are told when all is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

Counted = Callable[[str, str, int], None]


@pytest.fixture(scope="session")
def all_of_it(request: pytest.FixtureRequest) -> bool:
    """Whether every case is run, or a share of them."""
    return bool(request.config.getoption("--all-attacks"))


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Counted:
    """Called with what was attacked, how it ended and how often; told below all tests."""

    def note(what: str, end: str, times: int) -> None:
        record_property("attack", (what, end, times))

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "attack":
                        what, end, times = value
                        told.setdefault(what, Counter())[end] += times
    if told:
        terminalreporter.section("attacks")
        for what, ends in sorted(told.items()):
            terminalreporter.line(f"{what}: " + ", ".join(f"{ends[end]} {end}" for end in sorted(ends)))
