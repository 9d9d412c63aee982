"""The program for a GPU, run on the CPU: its table, and missing libraries or GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.places import ROOT
from tools.gpu import STATUS, main

HIDDEN = ("datasets", "evaluate", "lm_eval", "bm25s", "rouge_score", "nltk")
TINY = (
    "--device cpu --answers float32 --methods icl,rag,mac --seconds 600 --row-seconds 300".split()
)


def run(hidden: tuple[str, ...], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process that cannot import the hidden libraries."""
    lines = "\n".join(f"sys.modules[{name!r}] = None" for name in hidden)
    (folder / "sitecustomize.py").write_text(f"import sys\n{lines}\n", encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tools.gpu", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_rows_that_miss_a_library_are_left_out(tmp_path: Path) -> None:
    done = run(HIDDEN, tmp_path, *TINY, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "out" / "answers.json").read_text())["rows"]
    statuses = {row["method"]: row[STATUS] for row in rows}
    assert statuses == {"icl": "ok", "mac": "ok", "rag": "left out: bm25s is missing here"}
    assert "| icl | float32 | 20 | 1.000 |" in (tmp_path / "out" / "answers.md").read_text()
    assert "| mac | float32 |" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "GPU" in capsys.readouterr().out
