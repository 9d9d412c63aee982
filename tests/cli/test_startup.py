"""A file in the current folder is never imported: what runs is what is installed. Processes end with their driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.places import ROOT
from ttabench.core.search_path import own_process
from ttabench.profiling import driver
from ttabench.profiling.job import Chosen, Job
from ttabench.profiling.load import Load


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


def test_in_safe_mode_not_even_modules_of_python_are_taken_from_there(downloads: Path) -> None:
    """As SECURITY.md says: without `-P`, python imports these before any line of ours."""
    for name in ("types", "re", "enum", "signal", "contextlib"):
        (downloads / f"{name}.py").write_text((downloads / "torch.py").read_text())
    done = run(downloads, "-P", "-m", "ttabench", "list", "tasks")
    assert done.returncode == 0, done.stderr
    assert not (downloads / "RUN").exists()


def test_nor_do_the_processes_of_a_profile(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(downloads)
    job = Job(model="no-such-model", chosen=(Chosen(method="none"),), lengths=(32,), device="cpu")
    request = {"task": "measure", "method": "none", "lengths": [32], "limits": None, "job": job.to_json()}
    kinds = [line if isinstance(line, driver.End) else line[0] for line in driver.launch(request)]
    assert kinds == ["fault", driver.End(code=0, said="")]
    assert not (downloads / "RUN").exists()


def test_a_process_of_ours_runs_this_very_package(downloads: Path) -> None:
    """Whichever is installed, and without the search path being told."""
    command = own_process("ttabench.core.search_path")
    here = "sys.modules['ttabench.core.search_path'].__file__"
    code = command[3].replace("import main; main()", f"import leave_current_folder; print({here})")
    done = run(downloads, "-P", "-c", code, *command[4:], path="")
    assert done.stdout.strip() == str(ROOT / "ttabench" / "core" / "search_path.py"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="refused: no other system kills what a process started")
def test_a_process_of_ours_does_not_outlive_the_one_that_started_it(tmp_path: Path) -> None:
    """Even where it listens to nobody: before its libraries are imported, or inside one of them."""
    sleeps = "import sys, time; print(1, flush=True); time.sleep(10_000)"
    starter = (
        "import subprocess, sys, time\n"
        "from ttabench.core.search_path import own_process\n"
        "command = own_process('ttabench.core.search_path')\n"
        f"command[3] = command[3].split('from ttabench.core.search_path import main')[0] + {sleeps!r}\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(10_000)"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
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


def test_a_process_ends_when_nobody_listens(tiny_base: Path) -> None:
    load = Load(piece_tokens=16, prompt_tokens=8, generate=2, repeat=10**6, row_seconds=1e6)
    job = Job(model=str(tiny_base), lengths=(32,), chosen=(Chosen(method="none"),), load=load, device="cpu")
    request = {"task": "measure", "method": "none", "lengths": [32], "limits": None, "job": job.to_json()}
    command = own_process("ttabench.profiling.worker")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            assert any(json.loads(line)["kind"] == "at" for line in process.stdout), "it measures for days"
            process.stdin.close()  # as the system does when the driver is killed
            assert process.wait(60) == 1
        finally:
            process.kill()
