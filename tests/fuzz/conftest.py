"""How much of the attacks is run."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def runs_all(request: pytest.FixtureRequest) -> bool:
    """Whether every case is run, or a share of them."""
    return bool(request.config.getoption("--all-attacks"))
