"""A file in the current folder is never imported: what runs is what is installed. Processes end with their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.places import ROOT
from ttabench.core.child import Child, Tell


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """A folder with modules that leave a mark where they are imported."""
    for name in ("torch", "typer", "yaml", "numpy", "lm_eval", "filelock", "json"):
        (tmp_path / f"{name}.py").write_text(f"import os\nopen(os.path.join({str(tmp_path)!r}, 'RUN'), 'w').close()\n")
    return tmp_path


def run(folder: Path, *words: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("words", [("ttabench", "list", "tasks"), ("ttabench.harness", "ls", "--help")], ids=str)
def test_the_commands_import_nothing_from_the_current_folder(downloads: Path, words: tuple[str, ...]) -> None:
    done = run(downloads, "-m", *words)
    assert done.returncode == 0, done.stderr
    assert not (downloads / "RUN").exists()


def answered(request: str, tell: Tell) -> None:
    """What a process of ours does with a word."""
    if request == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if request == "sleep":
        tell(os.getpid())
        time.sleep(10_000)
    import torch

    tell((request, torch.__file__, os.environ.get("TOLD")))


def test_nor_do_processes_of_ours(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(downloads)
    with closing(Child(answered, ("torch", "yaml"), {"TOLD": "yes"})) as child:
        told = [*child.ask("one"), *child.ask("two"), *child.ask("die")]
    assert [(word, value) for word, _, value in told[:2]] == [("one", "yes"), ("two", "yes")]
    assert told[2].code == -signal.SIGKILL
    assert not (downloads / "RUN").exists()


def test_a_process_of_ours_does_not_outlive_the_one_that_started_it(tmp_path: Path) -> None:
    """Even where it listens to nobody."""
    starter = tmp_path / "starter.py"
    starter.write_text(
        "from tests.cli.test_startup import Child, answered\n"
        "if __name__ == '__main__':\n"
        "    print(next(Child(answered, ()).ask('sleep')), flush=True)\n"
        "    import time; time.sleep(10_000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, starter], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        process.kill()
        process.wait()
    for _ in range(100):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it lives on")
