"""Against kvpress itself, where it is installed: methods keep the slots of its presses."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.methods.reading import read
from tests.methods.test_eviction import make as make_evicting
from tests.methods.test_kvpress import NOISE, asked, make
from tests.places import ROOT
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.kvpress.method import INSTALL_COMMAND

pytestmark = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("kvpress", "cachetools", "fire", "termcolor")
    ),
    reason=f"kvpress is not installed ({INSTALL_COMMAND})",
)
MODELS = {"mha": lambda: tiny_llama(gqa=False), "gqa": tiny_llama}


@pytest.fixture(autouse=True, scope="module")
def kvpress() -> Iterator[Any]:
    """kvpress as it is once imported, with all attention functions wrapped, for the tests of this module only."""
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    module = importlib.import_module("kvpress")
    if dict(ALL_ATTENTION_FUNCTIONS.items()) == before:  # imported earlier in this process
        module.attention_patch.patch_attention_functions()
    yield module
    for name, function in before.items():
        ALL_ATTENTION_FUNCTIONS[name] = function


@pytest.fixture(params=MODELS)
def lm(request: pytest.FixtureRequest) -> LM:
    return MODELS[request.param]()


def kept_places(lm: LM, state: State) -> Tensor:
    """The place in the text [L, H, P], ascending, of every key that stayed, found among the keys of full context."""
    whole = read(InContext(lm, InContextSettings()), *TEXTS).tensors["keys"][:, 0]
    found = (state.tensors["keys"][:, 0, :, :, None] - whole[:, :, None]).abs().amax(-1).min(-1)
    assert (found.values < 1e-5).all()
    return found.indices.sort(-1).values


@pytest.mark.parametrize("budget", [40, 0.3])
@pytest.mark.parametrize(
    ("name", "settings", "press"),
    [
        (
            "snapkv",
            {"window": 8, "kernel": 5, "pool": "avg"},
            "SnapKVPress?window_size=8&kernel_size=5",
        ),
        (
            "snapkv",
            {"window": 16, "kernel": 3, "pool": "avg"},
            "SnapKVPress?window_size=16&kernel_size=3",
        ),
        ("keydiff", {}, "KeyDiffPress"),
        ("expected_attention", {"future": 100}, "ExpectedAttentionPress?n_future_positions=100"),
        ("expected_attention", {"n_sink": 0}, "ExpectedAttentionPress?n_sink=0"),
    ],
)
def test_scoring_methods_keep_the_slots_of_their_press(
    lm: LM, name: str, settings: dict[str, Any], press: str, budget: int | float
) -> None:
    theirs, ours = (
        make(f"kvpress:{press}", budget, lm),
        make_evicting(name, lm, budget=budget, **settings),
    )
    index = read(ours, *TEXTS).tensors["index"][:, 0]
    assert torch.equal(kept_places(lm, read(theirs, *TEXTS)), index.long())
    torch.testing.assert_close(asked(theirs, *TEXTS), asked(ours, *TEXTS), **NOISE)


@pytest.mark.parametrize("name", ["FinchPress", "KVzipPress", "KeyRerotationPress(KnormPress)"])
def test_presses_that_read_in_a_way_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=name.partition("(")[0]):
        make(f"kvpress:{name}")


def test_importing_it_changes_no_other_method() -> None:
    """In a process of its own: what icl, snapkv and h2o answer before and after the import, bit by bit."""
    code = """
import torch
from tests.methods.reading import logits, read
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, tiny_method
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from ttabench.lm.attention import ATTENTION_NAME, forward
from ttabench.methods.registry import find

lm = tiny_llama()
methods = [tiny_method(name, lm) for name in ("icl", "snapkv", "h2o", "window", "mac")]
def answers():
    return [logits(method, read(method, *TEXTS)) for method in methods]
before = answers()
find("kvpress:AdaKVPress(KnormPress)")
assert ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME] is not forward, "the import no longer wraps anything: this test is void"
assert all(torch.equal(one, other) for one, other in zip(before, answers(), strict=True))
"""
    root = ROOT
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=root, timeout=300)
    assert done.returncode == 0, done.stderr
