"""A file in the current folder is never imported: what runs is what is installed. Processes end with their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.places import ROOT
from ttabench.core.child import SendMessage, WorkerProcess


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """A folder with modules that leave a mark where they are imported."""
    for name in ("torch", "typer", "yaml", "numpy", "lm_eval", "filelock", "json"):
        (tmp_path / f"{name}.py").write_text(
            f"import os\nopen(os.path.join({str(tmp_path)!r}, 'RUN'), 'w').close()\n"
        )
    return tmp_path


def run(folder: Path, *words: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "words", [("ttabench", "list", "tasks"), ("ttabench.harness", "ls", "--help")], ids=str
)
def test_the_commands_import_nothing_from_the_current_folder(
    downloads: Path, words: tuple[str, ...]
) -> None:
    done = run(downloads, "-m", *words)
    assert done.returncode == 0, done.stderr
    assert not (downloads / "RUN").exists()


def answered(request: str, tell: SendMessage) -> None:
    """What a process of ours does with a word."""
    if request == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    import torch

    tell((request, torch.__file__, os.environ.get("TOLD")))


def test_nor_do_processes_of_ours(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(downloads)
    with closing(WorkerProcess(answered, ("torch", "yaml"), {"TOLD": "yes"})) as child:
        told = [*child.ask("one"), *child.ask("two"), *child.ask("die")]
    assert [(word, value) for word, _, value in told[:2]] == [("one", "yes"), ("two", "yes")]
    assert told[2].code == -signal.SIGKILL
    assert not (downloads / "RUN").exists()
