"""Where things lie: this checkout, and the data and fixtures beside it or within."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
"""Real data in the published formats; tests of them are skipped where they are not there."""
VENDORED_FIXTURES = ROOT / "tests" / "fixtures"
fixture_folder: Path | None = None
"""The folder of `pytest --parity-fixtures DIR`."""


def fixture_file(name: str) -> Path:
    """A file of what official implementations give: of the folder chosen, else beside this checkout, else here."""
    if fixture_folder is not None:
        return fixture_folder / name
    beside = SHARED / "fixtures" / name
    return beside if beside.is_file() else VENDORED_FIXTURES / name


def reported_figures_file() -> Path:
    """Every figure that the papers report."""
    return ROOT / "results" / "papers" / "reported.csv"
