"""What `results/make.py` takes for granted about the twins."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ttabench.lm import LM, load
from ttabench.readers import load as load_task
from ttabench.stream import piece_ids

RESULTS = Path(__file__).resolve().parent.parent / "results"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_make", RESULTS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(RESULTS)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nano() -> LM:
    return load("nano", device="cpu")


def test_a_fifth_of_the_context_is_a_fifth(make: ModuleType, nano: LM) -> None:
    for name, fifth in make.FIFTH.items():
        task = load_task(name, options={} if name == "metaicl" else {"shots": "10"})
        lengths = [sum(len(piece_ids(nano, piece)) for piece in e.observes()) for e in task.episodes(nano)]
        assert fifth == pytest.approx(sum(lengths) / len(lengths) / 5, rel=0.06), name


def test_every_suite_is_made_of_commands_that_can_be_typed(make: ModuleType) -> None:
    from ttabench.registry import resolve

    for commands in make.SUITES.values():
        assert len({tuple(words) for words in commands}) == len(commands)
        for words in commands:
            assert words[0] == "--method"
            assert resolve(words[1]).name == words[1]
    assert "results_make" not in sys.modules
