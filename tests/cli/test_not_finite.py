"""Weights that a number format cannot hold: whatever is asked ends in one line, and nothing is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command, one_line
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model that float32 holds and float16 does not."""
    folder = tmp_path_factory.mktemp("base") / "large"
    lm = tiny_llama()
    for parameter in lm.model.parameters():
        parameter.data.mul_(2000)
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


TASKS = {
    "options": ("superglue", "shots=1"),
    "generation": ("streamingqa", "documents=2"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_ends_in_one_line_and_is_not_stored(ttabench: Command, tmp_path: Path, large: Path, kind: str) -> None:
    task, option = TASKS[kind]
    words = ("eval", "--method", "none", "--task", task, "--task-set", option, "--source", "mini", "--limit", 2,
             "--model", large, "--out", tmp_path, "--quiet")  # fmt: skip
    line = one_line(ttabench(*words, "--dtype", "float16"))
    assert f"Error: {task}/" in line
    assert "are not finite" in line
    assert "--dtype float32" in line
    assert not list(tmp_path.rglob("run.json"))
    assert ttabench(*words, "--dtype", "float32").code == 0
    assert len(list(tmp_path.rglob("run.json"))) == 1
