"""What several test modules share: a tiny base model on disk, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ttabench import cli


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a two-layer random Llama and its tokenizer, as `--model` takes it."""
    from tests.tiny import tiny_llama

    folder = tmp_path_factory.mktemp("base") / "tiny"
    lm = tiny_llama()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture
def ttabench(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command line in this process: `ttabench("eval", "--method", "none")`."""

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    before = torch.are_deterministic_algorithms_enabled()
    yield call
    torch.use_deterministic_algorithms(before)
