"""Under a real limit: one line says what was wanted and what would fit; what is answered stays."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.attack.dying import alone
from tests.tiny import drawn
from ttabench.cli import app as cli
from ttabench.core import memory
from ttabench.records.folder import RunFolder

pytestmark = pytest.mark.skipif(memory.in_use() is None, reason="refused: this system does not say what is in use")
MIB = 2**20


def sparse_weights(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros that takes no room on the disk."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    with file.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(handle.tell() + end)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    import ttabench.run.runner  # noqa: F401  # what the forks need is imported before


def limited(more: int, *words: object) -> tuple[int, str]:
    """A command in a fork that may take so many bytes more than this process does."""
    most = ((memory.in_use() or 0) + more) // MIB
    typed = [*map(str, words), "--device", "cpu", "--memory-limit", f"{most}MiB"]
    return alone(lambda: cli.run(typed))


def line_of(ran: tuple[int, str]) -> str:
    lines = [line for line in ran[1].splitlines() if line.startswith("Error: ") or "Traceback" in line]
    assert (ran[0], len(lines)) == (2, 1), ran
    return lines[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 25 MiB whose layers hold half a MiB of every token they read."""
    folder = tmp_path_factory.mktemp("wide") / "wide"
    config = LlamaConfig(vocab_size=259, hidden_size=16, intermediate_size=2**17, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=256,
                         eos_token_id=257, pad_token_id=258)  # fmt: skip
    lm = drawn(LlamaForCausalLM, config, "wide", 0)
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


def test_a_model_that_does_not_fit(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    for file in tiny_base.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "vocab_size": 2**24}))
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**{**said, "vocab_size": 2**24}))
    sparse_weights(folder / "model.safetensors", {name: tuple(p.shape) for name, p in model.named_parameters()})
    line = line_of(limited(200 * MIB, "eval", "--method", "none", "--model", folder, "--source", "mini"))
    assert "large' does not fit into memory" in line
    assert "Take a smaller --model or --dtype bfloat16" in line


def test_answers_before_it_did_not_fit_stay(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["eval", "--method", "icl", "--set", "truncate=right", "--model", wide, "--source", "mini",
             "--batch-size", 1, "--task-set", "documents=3", "--task-set", "questions=1",
             "--task-set", "max_new_tokens=1", "--dtype", "float32", "--device", "cpu",
             "--out", tmp_path / "runs", "--quiet"]  # fmt: skip

    def rows() -> Any:
        (file,) = (tmp_path / "runs").glob("*/run.json")
        return [{**row, "run": ""} for row in json.loads(file.read_text())["rows"]]

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", _then_die(RunFolder.append, 2))
        assert cli.run([str(word) for word in words]) == 130
    (partial,) = (tmp_path / "runs").glob("*/partial.jsonl")
    before = partial.read_bytes()
    line = line_of(limited(150 * MIB, *words))
    assert "--dtype bfloat16" in line
    assert partial.read_bytes() == before, "two answers, as they were"
    assert cli.run([str(word) for word in words]) == 0
    continued = rows()
    assert cli.run([*(str(word) for word in words), "--force"]) == 0
    assert rows() == continued


def _then_die(original: Callable[..., Any], at: int) -> Callable[..., Any]:
    calls: list[int] = []

    def call(*given: Any) -> None:
        original(*given)
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt

    return call
