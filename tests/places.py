"""Paths of this checkout, and of data and fixtures next to it or inside."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
"""Real data in the published formats. Tests that need it are skipped if it is missing."""
VENDORED_FIXTURES = ROOT / "tests" / "fixtures"
fixture_folder: Path | None = None
"""Folder of `pytest --parity-fixtures DIR`."""


def fixture_file(name: str) -> Path:
    """Return reference values of official implementations: from that folder, shared, or vendored."""
    if fixture_folder is not None:
        return fixture_folder / name
    shared = SHARED / "fixtures" / name
    return shared if shared.is_file() else VENDORED_FIXTURES / name


def reported_figures_file() -> Path:
    """Return the table of all figures that the papers report."""
    return ROOT / "results" / "papers" / "reported.csv"
