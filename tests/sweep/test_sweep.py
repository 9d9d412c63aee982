"""`ttabench sweep`: what is stored is left alone, what fails is a row, what was killed goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.places import ROOT
from tests.sweep.conftest import records
from ttabench.core.files import hold_lock
from ttabench.sweep import engines
from ttabench.sweep.engines import Job, JobReport, Resources, run_job

Suite = Callable[..., Path]


class Scripted:
    """An engine that says of every run what stands here; a second time, what stands second."""

    def __init__(self, *states: dict[str, str]) -> None:
        self.states, self.asked = list(states), list[list[Job]]()

    def __call__(self, jobs: Sequence[Job], _: Resources) -> Iterator[JobReport]:
        self.asked.append(list(jobs))
        said = self.states.pop(0)
        for job in jobs:
            state, _, reason = said.get(job.method, "new").partition(": ")
            yield JobReport(id=job.id, status=state, reason=reason)  # type: ignore[arg-type]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made in this process."""
    monkeypatch.setattr(engines, "find_engine", lambda *_: lambda jobs, _: map(run_job, jobs))


def run(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=300, env=environment(), **more
    )


def command(*words: object) -> list[str]:
    """The words of a sweep of one thread a run: more would have other last digits."""
    return [sys.executable, "-m", "ttabench", *map(str, words), "--threads", "1"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_what_is_stored_is_not_run_again(
    ttabench: Command, suite: Suite, here: None, tmp_path: Path
) -> None:
    words = ("sweep", suite("none", "icl", seeds=(0, 1)), "--out", tmp_path / "runs", "--json")
    first = ttabench(*words).json()["runs"]
    assert [(run["method"], run["seed"], run["how"]) for run in first] == [
        ("none", 0, "new"),
        ("none", 1, "new"),
        ("icl", 0, "new"),
        ("icl", 1, "new"),
    ]
    before = records(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / first[2]["id"])
    again = ttabench(*words).json()["runs"]
    assert [run["how"] for run in again] == ["stored", "stored", "new", "stored"]
    assert records(tmp_path / "runs") == before
    assert [run["how"] for run in ttabench(*words, "--force").json()["runs"]] == ["new"] * 4


def test_untrained_methods_are_named_before_they_run(
    ttabench: Command, suite: Suite, tmp_path: Path
) -> None:
    told = ttabench(
        "sweep", suite("icl", "ccm", "rag+ccm", seeds=(0, 1)), "--out", tmp_path, "--dry-run"
    ).err
    assert "ccm" in told
    assert "4 of 6" in told


def test_without_a_file_and_next_to_one(ttabench: Command, suite: Suite, tmp_path: Path) -> None:
    def planned(*words: object) -> list[tuple[str, str, int]]:
        rows = ttabench("sweep", *words, "--out", tmp_path, "--dry-run", "--json").json()["runs"]
        return [(row["method"], row["task"], row["seed"]) for row in rows]

    typed = "--methods none,icl --tasks streamingqa,superglue --seeds 0,1".split()
    assert len(planned(*typed, "--limit", "2")) == 8
    set_ = planned("--methods", "mac", "--tasks", "streamingqa", "--set", "hierarchy=16")
    assert set_ == [("mac hierarchy=16", "streamingqa", 0)]
    task = "streamingqa documents=1 max_new_tokens=2"
    assert planned(suite("none", seeds=(0, 1)), "--seeds", "5") == [("none", task, 5)]
    assert planned(suite("none", "icl"), "--methods", "window") == [("window", task, 0)]


def test_a_dry_run_reports_what_is_stored(
    ttabench: Command, suite: Suite, here: None, tmp_path: Path
) -> None:
    words = (
        f"--tasks streamingqa --task-set documents=2 --limit 2 --out {tmp_path / 'runs'}".split()
    )
    assert ttabench("sweep --methods none", *words).code == 0
    told = ttabench("sweep --methods none,icl", *words, "--dry-run", "--json").json()
    assert [run["stored"] for run in told["runs"]] == [True, False]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [told["runs"][0]["id"]]
    assert (
        "2 runs: 1 stored, 1 to run."
        in ttabench("sweep --methods none,icl", *words, "--dry-run").out
    )


def test_a_run_that_fails_is_a_row_and_the_others_go_on(
    ttabench: Command, suite: Suite, here: None, dies: Path, tmp_path: Path
) -> None:
    methods = suite({"method": str(dies), "set": {"kind": "fault"}}, "none")
    ran = ttabench(f"sweep {methods} --out {tmp_path / 'runs'}")
    assert ran.code == 1
    assert "dies.py" in ran.err
    assert "RuntimeError: nothing" in ran.err
    assert "2 runs in" in ran.out
    assert "1 new, 1 failed" in ran.out
    assert f"Compare: ttabench compare --out {tmp_path / 'runs'}" in ran.out
    assert "dies kind=fault on streamingqa documents=1" in ran.err
    quiet = ttabench(f"sweep {methods} --out {tmp_path / 'runs'} --quiet")
    assert quiet.code == 1
    assert len(quiet.out.splitlines()) == 1
    assert "RuntimeError: nothing" in quiet.err


def test_what_an_engine_lost_is_made_once_more_and_then_fails(
    ttabench: Command, suite: Suite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted = Scripted(
        {"none": "lost: killed", "icl": "lost: killed", "window": "failed: no"},
        {"none": "failed: mended", "icl": "lost: killed again"},
    )
    monkeypatch.setattr(engines, "find_engine", lambda *_: scripted)
    ran = ttabench("sweep", suite("none", "icl", "window"), "--out", tmp_path / "runs", "--json")
    assert ran.code == 1
    assert [len(jobs) for jobs in scripted.asked] == [3, 2]
    assert [job.waits_for_others for jobs in scripted.asked for job in jobs] == [False] * 3 + [
        True
    ] * 2
    for reason in ("mended", "killed again", "no"):
        assert f'"reason": "{reason}"' in ran.out


def test_a_run_that_another_process_makes_is_left_to_it(
    ttabench: Command, suite: Suite, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    (run,) = ttabench("sweep", suite("none"), "--out", out, "--dry-run", "--json").json()["runs"]
    (out / run["id"]).mkdir(parents=True)
    scripted = Scripted({})
    monkeypatch.setattr(engines, "find_engine", lambda *_: scripted)
    ttabench("sweep", suite("none"), "--out", out)  # it makes nothing
    ((job,),) = scripted.asked
    with hold_lock(out / run["id"], lambda: None):
        assert run_job(job).status == "busy"
    assert run_job(job).status == "new"
