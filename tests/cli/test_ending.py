"""How commands end: asked to by a signal, without an output that can be written, without memory."""

from __future__ import annotations

import faulthandler
import io
import locale
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, CommandResult, error_line
from tests.places import ROOT
from ttabench.cli import app as cli
from ttabench.core.child import SendMessage, WorkerProcess
from ttabench.core.environment import is_memory_limited
from ttabench.methods.checkpoints import read_header
from ttabench.records.folder import RunFolder
from ttabench.training.training_state import Curve

FULL = Path("/dev/full")
Signal = signal.Signals


def sending(original: Callable[..., Any], number: Signal, at: int) -> Callable[..., Any]:
    """Do what is done, and at the `at`-th time send this process a signal."""
    calls: list[int] = []

    def call(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), number)
        return result

    return call


CODES = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
Main = Callable[..., CommandResult]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """The entry point in this process, which alone changes the process."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt == signal.SIG_IGN:  # as a shell has it of what it starts behind itself
        interrupt = signal.default_int_handler
    signal.signal(signal.SIGINT, interrupt)
    for name in ("HF_HUB_VERBOSITY", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "error")

    def call(words: object, *arguments: object) -> CommandResult:
        capsys.readouterr()
        typed = [*str(words).split(), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", ["ttabench", *typed])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "it is as it was"
        assert signal.getsignal(signal.SIGINT) == interrupt
        printed = capsys.readouterr()
        return CommandResult(int(str(left.value.code)), printed.out, printed.err)

    return call


@pytest.mark.parametrize(("number", "code"), CODES)
def test_an_evaluation_that_is_asked_to_end_goes_on(
    ttabench: Command,
    main: Main,
    common: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: Signal,
    code: int,
) -> None:
    words = f"eval --method none {common} --task-set questions=4 --batch-size 1 --json".split()
    whole = ttabench(*words, "--out", tmp_path / "whole").json()["runs"][0]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", sending(RunFolder.append, number, 2))
        stopped = main(*words)
    assert stopped.code == code
    assert len(stopped.err.splitlines()) == 1
    assert stopped.out == ""
    (partial,) = (tmp_path / "runs").rglob("partial.jsonl")
    assert len(partial.read_text().splitlines()) == 2
    assert ttabench(*words).json()["runs"][0]["rows"] == whole["rows"]


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_training_that_is_asked_to_end_saves_its_step(
    main: Main,
    tiny_base: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: Signal,
    code: int,
) -> None:
    words = f"train --method lora --set rank=2 --model {tiny_base} --source mini --steps 3 --documents 1 --questions 1 --quiet".split()
    assert main(*words, "--out", tmp_path / "whole").code == 0
    with monkeypatch.context() as patched:
        patched.setattr(Curve, "add", sending(Curve.add, number, 2))
        stopped = main(*words, "--out", tmp_path / "two")
    assert stopped.code == code
    assert read_header(tmp_path / "two").step == 2
    assert str(tmp_path / "two") in "".join(stopped.err.split("\n")), "it says what is saved"
    assert main(*words, "--out", tmp_path / "two").code == 0
    losses = [read_header(tmp_path / name).training["losses"] for name in ("whole", "two")]
    assert losses[0] == losses[1]
    weights = [(tmp_path / name / "adapter.safetensors").read_bytes() for name in ("whole", "two")]
    assert weights[0] == weights[1]


COMMANDS = {
    "eval": ("--method", "none"),
    "sweep": ("--methods", "none", "--tasks", "streamingqa"),
    "profile": (),
    "compare": ("runs",),
    "ask": ("Who?", "--context", "a.txt"),
    "adapt": ("--context", "a.txt"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_promises_what_holds(
    name: str, ttabench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only commands that store as they go can continue, and not where they are told to start again."""
    (tmp_path / "a.txt").write_text("Ada Voss lives in Port Ansel.")
    monkeypatch.chdir(tmp_path)

    def interrupted(*_given: object, **_named: object) -> None:
        raise KeyboardInterrupt

    for place in (
        "run.plan.make_plan",
        "sweep.suite.plan_jobs",
        "profiling.job.Job.check",
        "report.selection.select_runs",
        "run.resolve.resolve_method",
    ):
        monkeypatch.setattr(f"ttabench.{place}", interrupted)
    ran = ttabench(name, *COMMANDS[name])
    assert (ran.code, len(ran.err.splitlines())) == (130, 1), ran
    stores = name in ("eval", "sweep", "profile")
    assert (len(ran.err.split()) > 1) == stores
    assert "--force" not in ran.err
    if stores:
        assert "--force" in ttabench(name, *COMMANDS[name], "--force").err


def test_a_command_leaves_the_process_as_it_was(
    common: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_HUB_VERBOSITY", raising=False)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)

    def state() -> list[object]:
        signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return [
            signals,
            dict(os.environ),
            stream.errors,
            sys.excepthook,
            list(warnings.filters),
            locale.setlocale(locale.LC_ALL),
            sys.path[:],
            Path.cwd(),
            faulthandler.is_enabled(),
            is_memory_limited(),
        ]

    before = state()
    assert cli.run(["eval", "--method", "none", *common.split()]) == 0
    assert state() == before
    with closing(WorkerProcess(answered, ())) as child:
        assert [*child.ask("one")] == ["1"]
    assert state() == before


def answered(_request: str, tell: SendMessage) -> None:
    """Whether a process of ours imports from the current folder."""
    tell(os.environ["PYTHONSAFEPATH"])


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TTABENCH": f"{sys.executable} -m ttabench",
    }
    return subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT
    )


@pytest.mark.skipif(not FULL.exists(), reason="refused: no device that is full")
@pytest.mark.parametrize("words", ["list methods", "--help"])
def test_an_output_that_is_full_is_one_line(words: str) -> None:
    done = shell(f"$TTABENCH {words} > /dev/full")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device" in done.stderr


def test_a_reader_who_goes_away_is_no_fault() -> None:
    done = shell("$TTABENCH list tasks --json | head -c 1; exit ${PIPESTATUS[0]}")
    assert done.returncode in (0, 1), "it may be done before the reader goes away"
    assert done.stderr == ""


def test_any_exhaustion_of_memory_is_one_line(
    ttabench: Command, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472"
            " bytes. Error code 12 (Cannot allocate memory)"
        )

    monkeypatch.setattr("ttabench.run.runner._EpisodeRun._read", full)
    line = error_line(ttabench(f"eval --method icl {common}"))
    assert line.startswith("Error: Out of memory.")
    assert "--batch-size" in line
