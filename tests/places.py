"""Where things lie: this checkout, and the data and fixtures beside it or within."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
"""Real data in the published formats; tests of them are skipped where they are not there."""
VENDORED = ROOT / "tests" / "fixtures"
chosen_fixtures: Path | None = None
"""The folder of `pytest --parity-fixtures DIR`."""


def fixture_file(name: str) -> Path:
    """A file of what official implementations give: of the folder chosen, else beside this checkout, else here."""
    if chosen_fixtures is not None:
        return chosen_fixtures / name
    beside = SHARED / "fixtures" / name
    return beside if beside.is_file() else VENDORED / name


def reported() -> Path:
    """Every figure that the papers report."""
    return ROOT / "results" / "papers" / "reported.csv"
