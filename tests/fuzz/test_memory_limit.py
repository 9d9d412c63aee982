"""Under a real limit: one line says what was wanted and what would fit; what is answered stays."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.fuzz.crash_helpers import run_forked
from ttabench.cli import app as cli

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(
    not STATUS.is_file(), reason="this system does not say what is in use"
)
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
    in_use = int(STATUS.read_text().partition("VmData:")[2].split()[0])
    most = in_use // 1024 + more // MIB
    typed = [*map(str, words), "--device", "cpu", "--memory-limit", f"{most}MiB"]
    return run_forked(lambda: cli.run(typed))


def line_of(ran: tuple[int, str]) -> str:
    lines = [
        line for line in ran[1].splitlines() if line.startswith("Error: ") or "Traceback" in line
    ]
    assert (ran[0], len(lines)) == (2, 1), ran
    return lines[0]


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
    sparse_weights(
        folder / "model.safetensors", {name: tuple(p.shape) for name, p in model.named_parameters()}
    )
    line = line_of(
        limited(200 * MIB, "eval", "--method", "none", "--model", folder, "--source", "mini")
    )
    assert "large'" in line
    assert "--dtype bfloat16" in line
