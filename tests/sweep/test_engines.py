"""Where runs are made: processes of this machine, Ray, a job array; each loses a process and makes its run again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sweep.conftest import records
from tests.sweep.test_sweep import command, environment, run
from ttabench.core.errors import UserError
from ttabench.sweep.engines import split_gpus

Suite = Callable[..., Path]
ENGINES = {
    "local": ("--jobs", "2"),
    "ray": ("--engine", "ray", "--engine-set", "address=local", "--jobs", "2"),
    "slurm": ("--engine", "slurm", "--engine-set", "cluster=local", "--jobs", "2"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> tuple[str, ...]:
    package = {"ray": "ray", "slurm": "submitit"}.get(request.param)
    if package and find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}")
    return ENGINES[request.param]


def test_a_run_whose_process_is_killed_is_made_once_more(
    engine: tuple[str, ...], suite: Suite, dies: Path, tmp_path: Path
) -> None:
    path = suite({"method": str(dies), "set": {"kind": ["once", "always"]}}, "none")
    done = run("sweep", path, "--out", "runs", "--json", *engine, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "resource_tracker" not in done.stderr, "the semaphore of a process that was killed"
    assert (tmp_path / "died").exists()
    rows = {row["method"]: row for row in json.loads(done.stdout)["runs"]}
    assert {name for name, row in rows.items() if row["how"] == "failed"} == {"dies kind=always"}
    assert rows["dies kind=always"]["reason"]
    assert rows["none"]["how"] == "new"
    again = run("sweep", path, "--out", "runs", "--methods", "none", "--quiet", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, f"runs/{rows['none']['id']}\n"), again.stderr


def test_two_commands_on_one_folder_run_nothing_twice(
    suite: Suite, dies: Path, tmp_path: Path
) -> None:
    path = suite("none", {"method": str(dies), "set": {"kind": "slow"}}, seeds=(0, 1))
    both = [
        subprocess.Popen(
            command("sweep", path, "--out", "runs", "--json"),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [json.loads(process.communicate(timeout=300)[0])["runs"] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    made = [row["id"] for rows in told for row in rows if row["how"] != "stored"]
    assert sorted(made) == sorted({row["id"] for row in told[0]})
    assert run("sweep", path, "--out", "alone", cwd=tmp_path).returncode == 0
    assert records(tmp_path / "runs") == records(tmp_path / "alone")


def test_gpus_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    assert [place["CUDA_VISIBLE_DEVICES"] for place in split_gpus(2, 2)] == ["3,5", "6,7"]
    assert split_gpus(3, 0) == [{}, {}, {}]
    with pytest.raises(UserError, match="more than the 4 GPUs"):
        split_gpus(5, 1)
