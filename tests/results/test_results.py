"""What `results/suites.py` takes for granted about the twins."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.places import ROOT
from ttabench.lm.model import LM, load
from ttabench.lm.tokens import piece_ids
from ttabench.readers import load as load_task

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_suites", RESULTS / "suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nano() -> LM:
    return load("nano", device="cpu")


def test_a_fifth_of_the_context_is_a_fifth(suites: ModuleType, nano: LM) -> None:
    for name, fifth in suites.FIFTH.items():
        task = load_task(name, options={} if name == "metaicl" else {"shots": "10"})
        lengths = [
            sum(len(piece_ids(nano, piece, first=not i)) for i, piece in enumerate(e.observes()))
            for e in task.episodes(nano)
        ]
        assert fifth == pytest.approx(sum(lengths) / len(lengths) / 5, rel=0.06), name


def test_every_suite_is_made_of_commands_that_can_be_typed(suites: ModuleType) -> None:
    from ttabench.methods.registry import find

    for commands in suites.SUITES.values():
        assert len({tuple(words) for words in commands}) == len(commands)
        for words in commands:
            assert words[0] == "--method"
            spec = find(words[1])
            assert spec.name == words[1]
            if "--preset" in words:
                assert words[words.index("--preset") + 1] in spec.presets
