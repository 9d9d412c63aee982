"""The plain references of this folder give the published numbers, and hold fixtures of another layout for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.parity import fixtures
from tests.parity.reference import made, numbers
from tests.places import ROOT

NAMES = ("snapkv", "h2o", "streamingllm", "mac", "camels", "ccm_model", "generative_adapter")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_gives_the_published_numbers(name: str) -> None:
    fixture = fixtures.load(name)
    compared = 0
    for key, actual in numbers.of(name, fixture).items():
        if key not in fixture.tensors:
            assert "grad" in key or "updated_params" in key, key
            continue  # of some a checkout holds a part
        expected = fixture.tensors[key]
        if "out/qa_logits" in key:
            real = fixture.tensors["input/qa_attention"].bool()
            actual, expected = actual[real], expected[real]
        scale = float(expected.abs().max()) if "grad" in key else 1.0
        torch.testing.assert_close(actual.to(expected.dtype), expected, atol=1e-5 * scale + 1e-7, rtol=1e-4)
        compared += 1
    assert compared >= len(fixture.spec.get("cases", NAMES))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixtures with other names of cases, shapes, lengths, heads and models."""
    folder = tmp_path_factory.mktemp("other")
    made.write(folder)
    return folder


def parity(folder: Path) -> subprocess.CompletedProcess[str]:
    """The parity tests with the fixtures of a folder."""
    files = [f"tests/parity/test_{name.removesuffix('_model')}.py" for name in NAMES]
    options = ["-v", "--tb=line", "-p", "no:cacheprovider", "--parity-fixtures", str(folder)]
    command = [sys.executable, "-m", "pytest", *options, *files]
    return subprocess.run(command, cwd=ROOT, env=os.environ, text=True, capture_output=True, check=False)


def test_the_parity_tests_pass_on_another_layout(other: Path) -> None:
    ran = parity(other)
    assert ran.returncode == 0, ran.stdout
    streams = [f"a_stream_token_by_token[{name}" for name, told in made.CCM.items() if "stream" in told]
    adapters = [name for name in made.ADAPTERS if name != "generator"]
    for case in (*made.SNAPKV, *made.H2O, *made.STREAMS, *made.CCM, *streams, *adapters, *made.UPDATES):
        assert any(case in line and line.split("%")[0].count("PASSED") for line in ran.stdout.splitlines()), case
    assert "test_mac.py::test_losses_and_gradients[lift] PASSED" in ran.stdout


def test_the_parity_tests_fail_on_other_numbers(other: Path, tmp_path: Path) -> None:
    for path in other.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
            continue
        tensors = load_file(path)
        given = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["given"]
        for key in tensors.keys() - given:
            tensors[key] = tensors[key] * 1.01 + 0.01 if tensors[key].is_floating_point() else tensors[key] + 1
        save_file(tensors, tmp_path / path.name)
    ran = parity(tmp_path)
    assert ran.returncode == 1, ran.stdout
    passed = [line for line in ran.stdout.splitlines() if "PASSED" in line]
    assert not passed, passed
