"""Against kvpress itself, where it is installed: what `snapkv` and `window` keep is what its presses keep."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.methods.test_kvpress import NOISE, QUESTION, asked, make, read
from tests.places import ROOT
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS
from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.eviction.settings import SnapKVSettings, WindowSettings
from ttabench.methods.eviction.snapkv import SnapKV
from ttabench.methods.eviction.window import SlidingWindow
from ttabench.methods.icl.method import InContext
from ttabench.methods.icl.settings import InContextSettings
from ttabench.methods.kvpress.names import INSTALL

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("kvpress", "cachetools", "fire", "termcolor")),
    reason=f"kvpress is not installed ({INSTALL})",
)
MODELS = {"mha": lambda: tiny_llama(gqa=False), "gqa": tiny_llama, "another": lambda: tiny_llama(seed=3)}


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


@pytest.mark.parametrize("budget", [40, 100, 0.3])
@pytest.mark.parametrize(("window", "kernel"), [(8, 5), (16, 3)])
def test_snapkv_keeps_what_its_press_keeps(lm: LM, budget: int | float, window: int, kernel: int) -> None:
    press = make(f"kvpress:SnapKVPress?window_size={window}&kernel_size={kernel}", budget, lm)
    ours = SnapKV(lm, SnapKVSettings(budget=budget, window=window, kernel=kernel, pool="avg", group="mean"))
    index = read(ours, *TEXTS).tensors["index"][:, 0]
    assert torch.equal(kept_places(lm, read(press, *TEXTS)), index.long())
    torch.testing.assert_close(asked(press, *TEXTS), asked(ours, *TEXTS), **NOISE)


@pytest.mark.parametrize("n_sink", [1, 4])
def test_window_after_the_prefill_keeps_what_streamingllm_press_keeps(lm: LM, n_sink: int) -> None:
    press = make(f"kvpress:StreamingLLMPress?n_sink={n_sink}", 40, lm)
    ours = SlidingWindow(lm, WindowSettings(n_sink=n_sink, recent=40 - n_sink, mode="postprefill"))
    places = kept_places(lm, read(press, *TEXTS))
    assert torch.equal(places, read(ours, *TEXTS).tensors["index"][:, 0].long().expand_as(places))
    torch.testing.assert_close(asked(press, *TEXTS), asked(ours, *TEXTS), **NOISE)


def test_slots_hidden_from_heads_are_as_in_its_own_decoding(lm: LM, kvpress: Any) -> None:
    method = make("kvpress:AdaKVPress(SnapKVPress?window_size=8)?alpha_safeguard=0.1", 20, lm)
    mine = asked(method, *TEXTS)
    full = asked(InContext(lm, InContextSettings()), *TEXTS)
    hidden = read(method, *TEXTS).tensors["hidden"]
    assert hidden.sum((1, 2, 3)).tolist() == [lm.kv_heads * (123 - 20)] * 2
    press = kvpress.AdaKVPress(kvpress.SnapKVPress(1 - 20.5 / 123, window_size=8), alpha_safeguard=0.1)
    ids = torch.tensor([[*lm.bos_ids, *lm.encode("\n\n".join(TEXTS))]])
    question = torch.tensor([lm.encode(QUESTION[0].prompt)])
    cache = DynamicCache()
    lm.model.set_attn_implementation("sdpa")
    for block in lm.decoder.layers:  # type: ignore[union-attr]
        block.self_attn.register_forward_pre_hook(_with_positions, with_kwargs=True)
    with torch.no_grad():
        with press(lm.model):
            lm.decoder(input_ids=ids, past_key_values=cache, use_cache=True)
        # its fake keys suit one query at a time
        logits = [lm.model(input_ids=token[None], past_key_values=cache).logits for token in question.split(1, 1)[0]]
    torch.testing.assert_close(torch.cat(logits, dim=1), mine[:, : len(logits)], atol=1e-4, rtol=1e-3)
    assert (mine - full).abs().max() > 1e-2


def _with_positions(module: Any, args: Any, kwargs: Any) -> Any:
    past = kwargs["past_key_values"].get_seq_length(module.layer_idx)
    return args, {**kwargs, "cache_position": torch.arange(past, past + kwargs["hidden_states"].shape[1])}


@pytest.mark.parametrize(
    ("name", "reduced"),
    [
        ("KnormPress", True),
        ("TOVAPress", True),
        ("ExpectedAttentionPress", True),
        ("ObservedAttentionPress", True),
        ("KeyRerotationPress(StreamingLLMPress)", True),
        ("CriticalKVPress(KnormPress)", True),
        ("CriticalAdaKVPress(KnormPress)", False),
    ],
)
def test_presses_keep_their_budget(lm: LM, name: str, reduced: bool) -> None:
    method = make(f"kvpress:{name}", 40, lm)
    state = read(method, *TEXTS)
    assert state.tensors["keys"].shape[3] == (40 if reduced else 123)
    assert state.tensors["next"].tolist() == [40 if name.startswith("KeyRerotation") else 123]
    assert state.labels == {"cache_reduced": reduced, "needs_eager": name.startswith("Observed")}
    assert asked(method, *TEXTS).isfinite().all()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("SnapKV", "Did you mean 'SnapKVPress'"),
        ("SnapKVPress?windowsize=3", "Did you mean 'window_size'"),
        ("AdaKVPress", r"kvpress:AdaKVPress\(SnapKVPress\)"),
        ("AdaKVPress(SimLayerKVPress)", "AdaKVPress requires a ScorerPress"),
        ("KVzipPress", "only presses that read the text in one pass"),
        ("DecodingPress(StreamingLLMPress)", "only presses that read the text in one pass"),
        ("SnapKVPress?compression_ratio=0.5", "--set budget=0.5"),
    ],
)
def test_what_is_not_offered_is_said(name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(f"kvpress:{name}", 40)


def test_uneven_layers_and_short_texts_are_refused() -> None:
    with pytest.raises(UserError, match="in one layer and"):
        read(make("kvpress:PerLayerCompressionPress(KnormPress)?compression_ratios=0.5,0.25"), *TEXTS)
    with pytest.raises(UserError, match=r"cannot compress these 31 tokens \(Query length 31 should be greater"):
        read(make("kvpress:SnapKVPress", 20), TEXTS[0] + ".")


def test_importing_it_changes_no_other_method() -> None:
    """In a process of its own: what icl, snapkv and h2o answer before and after the import, bit by bit."""
    code = """
import torch
from tests.methods.test_kvpress import QUESTION, logits, read
from tests.tiny import tiny_llama
from tests.tiny_methods import TEXTS, tiny_method
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from ttabench.lm.attention.interface import NAME, forward
from ttabench.methods.registry import find

lm = tiny_llama()
methods = [tiny_method(name, lm) for name in ("icl", "snapkv", "h2o", "window", "mac")]
def answers(rows):
    return [logits(lm, method.patch(read(method, *TEXTS), QUESTION), rows) for method in methods]
before = [*answers(1), *answers(3)]
find("kvpress:AdaKVPress(KnormPress)")
assert ALL_ATTENTION_FUNCTIONS[NAME] is not forward, "the import no longer wraps anything: this test is void"
assert all(torch.equal(one, other) for one, other in zip(before, [*answers(1), *answers(3)], strict=True))
"""
    root = ROOT
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=root, timeout=300)
    assert done.returncode == 0, done.stderr
