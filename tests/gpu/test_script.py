"""The first run on a GPU, tried on a CPU with nano: the table, and what happens where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.__main__ import main
from tests.gpu.report import STATUS
from tests.places import ROOT

HIDDEN = ("datasets", "evaluate", "lm_eval", "bm25s", "rouge_score", "nltk")
TINY = "--device cpu --answers float32 --methods icl,rag,mac --seconds 600".split()


def run(hidden: tuple[str, ...], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in which these libraries cannot be imported."""
    lines = "\n".join(f"sys.modules[{name!r}] = None" for name in hidden)
    (folder / "sitecustomize.py").write_text(f"import sys\n{lines}\n", encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.gpu", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_table_is_made_without_what_may_be_missing(tmp_path: Path) -> None:
    done = run(HIDDEN, tmp_path, *TINY, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "out" / "answers.json").read_text())["rows"]
    told = {row["method"]: row[STATUS] for row in rows}
    assert told == {"icl": "ok", "mac": "ok", "rag": "left out: bm25s is missing here"}
    assert "| icl | float32 | 20 | 1.000 |" in (tmp_path / "out" / "answers.md").read_text()
    assert "| mac | float32 |" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_reports_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == "skipped: no CUDA GPU is here\n"
