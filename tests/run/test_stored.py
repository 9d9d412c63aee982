"""`eval` finds what is stored and no run that may be another, and says when other versions made a stored run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from ttabench.core.environment import versions

Evaluate = Callable[..., Any]


@pytest.fixture
def evaluate(ttabench: Command, common: list[object]) -> Evaluate:
    """A run of six queries: its entry in the JSON of the command, or what is shown."""
    words = ["--method", "icl", "--set", "truncate=right", "--task-set", "documents=3", "--task-set", "questions=2",
             "--batch-size", 2]  # fmt: skip
    return lambda *more: ttabench("eval", *common, *words, *more)


def test_a_stored_run_says_which_versions_it_had(evaluate: Evaluate) -> None:
    first = evaluate("--json").json()["runs"][0]
    assert "was made with" not in evaluate().err
    file = Path(first["folder"]) / "run.json"
    stored = json.loads(file.read_text())
    stored["versions"] |= {"torch": "0.1", "ttabench": "0.0.1"}
    stored["config"]["settings"]["max_tokens"] = 64  # its default was another then
    file.write_text(json.dumps(stored))
    now = versions()
    told = f"ttabench 0.0.1 (now {now['ttabench']}), torch 0.1 (now {now['torch']}), max_tokens 64 (now None)"
    said = [line for line in evaluate().err.splitlines() if "made with" in line]
    assert said == [f"Run {stored['id']} was made with {told}."]
    assert evaluate("--quiet").err == f"{said[0]}\n", "figures would be others, so it is always said"
    stored["config"]["settings"]["max_tokens"] = None
    stored["task"]["metrics"].remove("f1_max")
    file.write_text(json.dumps(stored))
    assert evaluate("--quiet").err == f"Run {stored['id']} was made without f1_max; --force runs it again.\n"
    stored["task"]["metrics"].append("f1_max")
    file.write_text(json.dumps(stored))
    assert evaluate("--quiet").err == "", "other versions alone are told where people look"


def test_a_stored_run_of_another_device_says_so(evaluate: Evaluate) -> None:
    """In the first line, and beside its milliseconds; --force makes it here."""
    first = evaluate("--device", "cpu", "--json").json()["runs"][0]
    here = evaluate("--device", "cpu")
    assert "made on" not in here.err
    assert "milliseconds" not in here.out
    file = Path(first["folder"]) / "run.json"
    stored = json.loads(file.read_text())
    stored["model"]["device"] = "cuda:0"
    stored["hardware"] |= {
        "gpu": {"name": "NVIDIA H100", "memory_bytes": 1, "cuda": "13.0"},
        "cpu": "EPYC",
        "threads": 8,
    }
    file.write_text(json.dumps(stored))
    shown, place = evaluate("--device", "cpu"), "cuda:0, NVIDIA H100, EPYC, 8 threads"
    assert " ".join(shown.err.split()).startswith(
        f"Run {first['id']} of {stored['created']}, made on {place}, is stored already; --force runs it anew here."
    )
    assert f"Seconds, milliseconds and memory are those of {place}." in " ".join(shown.out.split())
    assert evaluate("--device", "cpu", "--force", "--json").json()["runs"][0]["model"]["device"] == "cpu"
    assert "made on" not in evaluate("--device", "cpu").err
