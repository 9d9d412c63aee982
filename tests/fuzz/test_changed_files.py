"""A file that changes between two calls of one process: the second call gives the id and figures of a new process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ttabench
from tests.methods.test_rag import sentence
from tests.places import ROOT
from ttabench.lm.loading.hub import NANO_FOLDER

TASK = {"limit": 2, "task_set": {"documents": 2, "max_new_tokens": 2}}
METHOD = '''"""Documents cut to their first letters."""
from dataclasses import replace
from ttabench.lm.patch import Patch
from ttabench.methods.base import Method
from ttabench.methods.icl.method import InContext
from ttabench.methods.icl import ICL
from ttabench.methods.spec import MethodSpec

{letters}

class Short(InContext):
    spec = MethodSpec(name="short", Settings=ICL.Settings, growth="linear")

    def adapt(self, state, pieces):
        cut = [[replace(piece, text=piece.text[:LETTERS]) for piece in row] for row in pieces]
        return super().adapt(state, cut)

    def patch(self, state, asks):
        return super().patch(state, asks)
'''
Write = Callable[[int], None]
RECORD_TYPES: dict[str, Callable[[], tuple[Write, dict[str, Any]]]] = {}
"""By kind of file: how the current folder gets its first or second version, and the options that read it."""


def kind(
    made: Callable[[], tuple[Write, dict[str, Any]]],
) -> Callable[[], tuple[Write, dict[str, Any]]]:
    RECORD_TYPES[made.__name__] = made
    return made


def scaled(folder: Path, factor: float, name: str = "model.safetensors") -> None:
    tensors = {
        key: tensor * factor if tensor.ndim > 1 else tensor
        for key, tensor in load_file(folder / name).items()
    }
    save_file(tensors, folder / name, metadata={"format": "pt"})


def trained(folder: Path, version: int) -> None:
    """A LoRA checkpoint, other weights for each version."""
    if not folder.exists():
        ttabench.train("lora", "streamingqa", out=folder, steps=1, settings={"rank": 1})
    path = folder / "adapter.safetensors"
    with safe_open(path, "pt") as file:
        metadata, shapes = (
            file.metadata(),
            {name: file.get_tensor(name).shape for name in file.keys()},  # noqa: SIM118
        )
    generator = torch.Generator().manual_seed(version)
    save_file(
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        path,
        metadata,
    )


@kind
def model() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        shutil.copytree(NANO_FOLDER, "m", dirs_exist_ok=True)
        scaled(Path("m"), 1.0 if version == 1 else 0.8)

    return write, {"method": "icl", "model": "./m", "source": "mini"}


@kind
def chat_template() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        shutil.copytree(NANO_FOLDER, "m", dirs_exist_ok=True)
        turn = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
        Path("m/chat_template.jinja").write_text(turn if version == 1 else f"Talk.\n{turn}")

    return write, {"method": "icl", "model": "./m", "source": "mini", "chat_template": True}


@kind
def folder_after_chdir() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        place = Path(f"../{version}" if Path.cwd().name == "1" else f"{version}")
        shutil.copytree(NANO_FOLDER, place / "m")
        scaled(place / "m", 1.0 if version == 1 else 0.8)
        os.chdir(place)

    return write, {"method": "icl", "model": "./m", "source": "mini"}


@kind
def base_checkpoint() -> tuple[Write, dict[str, Any]]:
    return lambda version: trained(Path("ck"), version), {
        "method": "icl",
        "base_checkpoint": "./ck",
    }


@kind
def checkpoint() -> tuple[Write, dict[str, Any]]:
    return lambda version: trained(Path("ck"), version), {"method": "lora", "checkpoint": "./ck"}


@kind
def method_file() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        Path("mine.py").write_text(METHOD.format(letters=f"LETTERS = {10 * version}"))

    return write, {"method": "./mine.py"}


@kind
def helper_of_a_method() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        Path("helper_mine.py").write_text(f"LETTERS = {10 * version}\n")
        Path("mine.py").write_text(METHOD.format(letters="from helper_mine import LETTERS"))

    return write, {"method": "./mine.py"}


@kind
def metric_file() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        Path("mine.py").write_text(f"def closeness(prediction, ask):\n    return {version / 4}\n")

    return write, {"method": "none", "metric": "./mine.py:closeness"}


@kind
def helper_of_a_metric() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        Path("helper_metric.py").write_text(f"VALUE = {version / 4}\n")
        Path("mine.py").write_text(
            "import helper_metric\ndef near(prediction, ask):\n    return helper_metric.VALUE\n"
        )

    return write, {"method": "none", "metric": "./mine.py:near"}


@kind
def rows() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        row = {
            "context": f"The code of Ada is {version}{version}.",
            "question": "What is the code of Ada?",
            "answers": [f"{version}{version}"],
        }
        Path("q.jsonl").write_text(json.dumps(row) + "\n")

    return write, {
        "method": "icl",
        "task": "./q.jsonl",
        "limit": None,
        "task_set": {"max_new_tokens": 2},
    }


@kind
def task_card() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        text = (
            (ROOT / "tasks/streamingqa.yaml").read_text().replace("name: streamingqa", "name: mine")
        )
        assert "{question}" in text
        Path("mine.yaml").write_text(
            text if version == 1 else text.replace("{question}", "Well, {question}")
        )

    return write, {"method": "icl", "task": "./mine.yaml"}


@kind
def retriever() -> tuple[Write, dict[str, Any]]:
    return lambda version: sentence(Path("e"), seed=version), {
        "method": "rag",
        "set": {"retriever": "./e", "top": 1},
        "limit": 8,
        "task_set": {"documents": 8},
    }


@kind
def state() -> tuple[Write, dict[str, Any]]:
    def write(version: int) -> None:
        session = ttabench.Session("nano", "icl")
        session.read([f"The home of Ada is number {version}."] * version)
        session.save("s", force=True)

    return write, {"method": "icl", "state": "./s", "ask_only": True}


def outcome(options: dict[str, Any], out: Path) -> list[Any]:
    run = ttabench.evaluate(**{"task": "streamingqa", **TASK, **options}, out=out)
    return [run.record.id, [row.value for row in run.record.rows]]


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_a_changed_file_is_seen_in_the_same_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, options = RECORD_TYPES[name]()
    write(1)
    first = outcome(options, tmp_path / "runs")
    write(2)
    second = outcome(options, tmp_path / "runs")
    again = f"outcome(RECORD_TYPES[{name!r}]()[1], Path({str(tmp_path / 'again')!r}))"
    code = f"from tests.fuzz.test_changed_files import *; print(json.dumps({again}))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    assert second == json.loads(ran.stdout.splitlines()[-1]), "as in a new process"
    assert second[0] != first[0]
    assert second[1] != first[1]


def test_two_checkpoints_of_one_name_are_two_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for version, place in ((1, "a"), (2, "b")):
        trained(Path(place, "ck"), version)
    found = [
        outcome({"method": "none", "base_checkpoint": f"{place}/ck"}, tmp_path / "runs")
        for place in "ab"
    ]
    alone = outcome({"method": "none", "base_checkpoint": "b/ck"}, tmp_path / "again")
    assert found[1] == alone
    assert found[0] != alone
