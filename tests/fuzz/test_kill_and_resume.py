"""A command that is killed at any write, and then given again, leaves what one leaves that nobody killed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
import torch

from tests.fuzz.crash_helpers import KilledProcess
from ttabench.cli import app as cli
from ttabench.lm.loading import safetensors_io
from ttabench.profiling import driver
from ttabench.profiling.driver import Findings, execute
from ttabench.profiling.job import Job, Load
from ttabench.profiling.record import Row, figure

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="refused: no forks here")
KILLS_TRIED = 4
"""Kills of a command that are tried with the tests."""
CLOCKS = re.compile(
    r"seconds|_ms|created|load_average|peak|^code$|per_second|^hardware$|digest_of_run"
)
"""Fields of records that no two runs share."""
Work = Callable[[Path], int]


def command(*words: object) -> int:
    return cli.run([str(word) for word in words])


ADAPT = "adapt --method templora --set rank=2 --set prefix=0 --quiet".split()


def eval_command(base: Path) -> Work:
    words = (
        "eval",
        "--method",
        "icl",
        "--set",
        "truncate=right",
        "--task",
        "streamingqa",
        "--source",
        "mini",
        "--model",
        base,
        "--batch-size",
        2,
        "--task-set",
        "documents=3",
        "--task-set",
        "questions=1",
        "--task-set",
        "max_new_tokens=2",
        "--quiet",
    )
    return lambda out: command(*words, "--out", out)


def train_command(base: Path) -> Work:
    words = (
        "train",
        "--method",
        "lora",
        "--set",
        "rank=2",
        "--model",
        base,
        "--source",
        "mini",
        "--steps",
        3,
        "--documents",
        1,
        "--questions",
        1,
        "--save-every",
        2,
        "--quiet",
    )
    return lambda out: command(*words, "--out", out)


def replace_state_command(base: Path) -> Work:
    """The state of another text is there already."""
    words = (*ADAPT, "--model", base, "--context", base.parent / "more.txt", "--force")
    return lambda out: command(*words, "--out", out)


def profile_command(base: Path) -> Work:
    """With processes that find what they always find."""

    def process(request: Mapping[str, Any]) -> Findings:
        method = {"name": request["method"], "growth": "none", "parameters": 0, "notes": []}
        yield from (("model", {"name": "tiny"}), ("method", method))
        for length in request["lengths"]:
            yield "at", length
            figures = {"total_seconds": figure([1.0]), "state_bytes": figure([float(length)])}
            yield "row", Row(method=request["method"], prefill=length, figures=figures).model_dump()

    chosen = {name: {"method": name} for name in ("none", "icl")}
    job = Job(
        model=str(base), lengths=(32, 64), method_requests=chosen, load=Load(repeat=1), device="cpu"
    )

    def work(out: Path) -> int:
        out.mkdir(exist_ok=True)
        with patch.object(driver, "launch_measurement", process):
            execute(job, out)
        return 0

    return work


COMMANDS = {
    "eval": eval_command,
    "train": train_command,
    "adapt --force": replace_state_command,
    "profile": profile_command,
}


def drop_clock_fields(value: Any) -> Any:
    """A value of JSON without what clocks told."""
    if isinstance(value, dict):
        return {
            key: drop_clock_fields(each) for key, each in value.items() if not CLOCKS.search(key)
        }
    return [drop_clock_fields(each) for each in value] if isinstance(value, list) else value


def folder_contents(folder: Path) -> dict[str, Any]:
    """What a command left behind: every file, but locks, and what it holds, but times."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_dir() or file.name == ".lock":
            continue
        if file.suffix == ".json":
            found[name] = drop_clock_fields(json.loads(file.read_text()))
        elif file.suffix == ".jsonl":
            found[name] = [
                drop_clock_fields(json.loads(line)) for line in file.read_text().splitlines()
            ]
        elif file.suffix == ".parquet":
            found[name] = drop_clock_fields(pq.read_table(file).to_pylist())
        elif file.name == "training.safetensors":
            tensors, metadata = safetensors_io.read_tensors(file)
            values = {key: tensor.tolist() for key, tensor in tensors.items()}
            found[name] = values, drop_clock_fields(json.loads(metadata["state"]))
        else:
            found[name] = file.read_bytes()
    return found


@pytest.fixture
def one_thread(tiny_base: Path, tmp_path: Path) -> None:
    """Forks have one thread; whatever is imported late is imported before."""
    torch.set_num_threads(1)
    for name, text in (
        ("notes", "Ada Voss lives in Port Ansel."),
        ("more", "Ada Voss has moved to Grey Harbour."),
    ):
        (tiny_base.parent / f"{name}.txt").write_text(text)
    if not (before := tiny_base.parent / "before").exists():
        assert (
            command(
                *ADAPT,
                "--model",
                tiny_base,
                "--context",
                tiny_base.parent / "notes.txt",
                "--out",
                before,
            )
            == 0
        )
    assert eval_command(tiny_base)(tmp_path / "warm") == 0


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_kill_at_any_write_changes_nothing(
    tiny_base: Path, one_thread: None, tmp_path: Path, name: str, runs_all: bool
) -> None:
    work = COMMANDS[name](tiny_base)

    def prepare(out: Path) -> Path:
        if name == "adapt --force":
            shutil.copytree(tiny_base.parent / "before", out)
        return out

    whole = prepare(tmp_path / "whole")
    code, steps = KilledProcess(whole).run(lambda: work(whole))
    assert (code, steps > 10) == (0, True), f"{steps} steps"
    expected = folder_contents(whole)
    every = 1 if runs_all else max(1, steps // KILLS_TRIED)
    for at in range(1, steps + 1, every):
        out = prepare(tmp_path / f"{at}")
        assert KilledProcess(out, at).run(lambda out=out: work(out))[0] == -9, at  # type: ignore[misc]
        assert KilledProcess(out).run(lambda out=out: work(out))[0] == 0, (
            f"after a kill at step {at} of {steps}"
        )  # type: ignore[misc]
        assert folder_contents(out) == expected, f"after a kill at step {at} of {steps}"
        shutil.rmtree(out)
