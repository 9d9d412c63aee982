"""How commands end: asked to by a signal, without an output that can be written, without memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, one_line
from tests.places import ROOT
from ttabench.records.folder import RunFolder

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


CODES = [(signal.SIGTERM, 143, "Terminated."), (signal.SIGINT, 130, "Interrupted.")]


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_an_evaluation_that_is_asked_to_end_goes_on(
    ttabench: Command, common: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: Signal, code: int,
    word: str,
) -> None:  # fmt: skip
    words = ["eval", "--method", "none", *common, "--task-set", "questions=4", "--batch-size", 1, "--json"]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it of what it starts behind itself
        signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = ttabench(*words, "--out", tmp_path / "whole").json()["runs"][0]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", sending(RunFolder.append, number, 2))
        stopped = ttabench(*words)
    assert stopped.code == code
    assert stopped.err.splitlines()[-1] == f"{word} What is stored is stored; the same command goes on from there."
    assert stopped.out == ""
    (partial,) = (tmp_path / "runs").rglob("partial.jsonl")
    assert len(partial.read_text().splitlines()) == 2
    assert ttabench(*words).json()["runs"][0]["rows"] == whole["rows"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "it is as it was"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TTABENCH": f"{sys.executable} -m ttabench"}
    return subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120,
        cwd=ROOT,
    )  # fmt: skip


@pytest.mark.skipif(not FULL.exists(), reason="refused: no device that is full")
@pytest.mark.parametrize("words", ["list methods", "--help"])
def test_an_output_that_is_full_is_one_line(words: str) -> None:
    done = shell(f"$TTABENCH {words} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: Standard output cannot be written: No space left on device. What was stored is stored.\n"
    )


def test_a_reader_who_goes_away_is_no_fault() -> None:
    done = shell("$TTABENCH list tasks --json | head -c 1; exit ${PIPESTATUS[0]}")
    assert done.returncode in (0, 1), "it may be done before the reader goes away"
    assert done.stderr == ""


def test_any_exhaustion_of_memory_is_one_line(
    ttabench: Command, common: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472"
                           " bytes. Error code 12 (Cannot allocate memory)")  # fmt: skip

    monkeypatch.setattr("ttabench.run.runner._EpisodeRun._read", full)
    line = one_line(ttabench("eval", "--method", "icl", *common))
    assert line.startswith("Error: Out of memory. Take less at once (--batch-size")
    assert "the same command goes on" in line
