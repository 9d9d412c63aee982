"""The notebook runs from top to bottom as it stands, and ends in a figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS
from tests.places import ROOT


def test_the_notebook_runs_and_ends_in_a_figure(tmp_path: Path) -> None:
    notebook = json.loads((DOCS / "examples/first.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells[-1].endswith("\nfigure"), "what is shown last"
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "nothing in it can be out of date"
    code = "\n".join([*cells, "assert axes.get_xlabel() and len(axes.texts) == len(runs)", "figure.savefig('a.png')"])
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    assert " above none" in done.stdout
    assert (tmp_path / "a.png").stat().st_size > 5000
