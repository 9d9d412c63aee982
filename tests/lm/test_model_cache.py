"""Models with more than keys and values in their cache: hybrid, recurrent, shared layers."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.conftest import Command, error_line
from tests.tiny import byte_tokenizer
from tools.tiny_architectures import tiny_model
from ttabench.contract.case import Case
from ttabench.contract.models import METHOD_SETTINGS, check_method
from ttabench.contract.promises import PROMISES
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.forward.capability_probe import reference_logprobs
from ttabench.lm.forward.patching import gradient_checkpointing, prefill
from ttabench.lm.forward.window import Window
from ttabench.lm.inference.scoring import answer_nll, token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.methods.lora import LoraSettings
from ttabench.methods.parts.kept import prefix_from_tensors, prefix_tensors
from ttabench.methods.registry import find_method
from ttabench.methods.states import load_state, save_state
from ttabench.run.session import Session
from ttabench.training.config import TrainConfig
from ttabench.training.loop import train

HYBRID = ["qwen3_5_text", "lfm2", "falcon_h1"]
SHARED = ["gemma3n_text", "gemma4_text"]
OPAQUE = ["minimax", "mamba", "deepseek_v4"]


def tiny(kind: str) -> LM:
    return LM(tiny_model(kind), byte_tokenizer(), kind, random_weights=True)


def ids(tokens: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def plain(lm: LM, prompt: list[int], target: list[int]) -> list[float]:
    """Log-probabilities of a target by transformers alone."""
    logprobs = reference_logprobs(lm, torch.tensor([[*prompt, *target]]))
    return logprobs[-len(target) - 1 : -1].gather(1, torch.tensor(target)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("kind", [*HYBRID, *SHARED, *OPAQUE])
@pytest.mark.parametrize("method", ["icl", "rag", "templora"])
def test_reading_continues_from_the_cache(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHOD_SETTINGS, "rag", {})
    assert check_method(method, tiny(kind)) == "right"


@pytest.mark.parametrize("kind", [*HYBRID, "gemma3n_text", *OPAQUE])
def test_a_stored_state_answers_like_the_whole_text(kind: str, tmp_path: Path) -> None:
    lm = tiny(kind)
    texts = ids(40), ids(23, 1)
    stored = State(1, prefix_tensors(prefill(lm, Patch(), torch.tensor([texts[0]]))))
    save_state(tmp_path, stored, {})
    before = prefix_from_tensors(load_state(tmp_path, {}).tensors)
    prefix = prefill(lm, Patch(prefix=before), torch.tensor([texts[1]]))
    items = [(ids(9, 2), ids(3, 3)), (ids(5, 4), ids(2, 5)), (ids(9, 6), ids(4, 7))]
    for _ in range(2):  # answers leave the prefix unchanged
        together = token_logprobs(lm, Patch(prefix=prefix), items)
        for (prompt, target), values in zip(items, together, strict=True):
            read = [*lm.start_ids, *texts[0], *texts[1], *prompt]
            assert values.tolist() == pytest.approx(plain(lm, read, target), abs=2e-3)
    tensors = [*prefix.keys_LBHPD, *prefix.values_LBHPD, *prefix.model_cache.values()]
    assert prefix.nbytes == sum(tensor.nbytes for tensor in tensors)


def test_the_state_of_a_recurrent_model_does_not_grow() -> None:
    lm = tiny("mamba2")
    sizes = {prefill(lm, Patch(), torch.tensor([ids(tokens)])).nbytes for tokens in (9, 30)}
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", [*HYBRID, "granitemoehybrid", "deepseek_v3"])
@torch.no_grad()
def test_eviction_equals_a_cache_of_transformers_without_these_slots(kind: str) -> None:
    """Recurrent states stay. Keys, or latents of keys, keep their positions."""
    lm = tiny(kind)
    text, prompt = "Mira Tolen keeps nine grey geese by the mill, and a heron.", ids(6, 1)
    spec = find_method("window")
    settings = spec.Settings(mode="postprefill", n_sink=4, recent=16, positions="original")
    method = spec.load()(lm, settings)
    state = method.adapt(method.begin(1), [[Chunk(text=text)]])
    prefix = method.patch(state, []).prefix
    assert prefix is not None
    read = [*lm.start_ids, *lm.encode(text)]
    ours = lm.logits(Window(lm, prefix, 1).feed(torch.tensor([prompt])))
    lm.set_attention("eager")
    cache = lm.decoder(input_ids=torch.tensor([read]), use_cache=True).past_key_values
    kept = [*range(4), *range(len(read) - 16, len(read))]
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    positions = torch.arange(len(read), len(read) + len(prompt))[None]
    expected = lm.model(
        input_ids=torch.tensor([prompt]), past_key_values=cache, position_ids=positions
    ).logits
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
    assert prefix.keys_LBHPD[0].shape[2] == len(kept)


@torch.no_grad()
def test_sharing_layers_attend_to_the_reduced_cache() -> None:
    lm = tiny("gemma3n_text")
    text, prompt = ids(12), ids(3, 1)  # within the window of local layers
    read, kept = [*lm.start_ids, *text], [0, 1, 2, 8, 9, 10, 11, 12]
    whole = prefill(lm, Patch(), torch.tensor([text]))
    assert len(whole.keys_LBHPD) < lm.layers
    positions = torch.tensor(kept)[None, None]
    reduced = replace(
        whole.map_layers(lambda layer: layer[:, :, kept]), positions_LBHP=(positions,)
    )
    ours = lm.logits(Window(lm, reduced, 1).feed(torch.tensor([prompt])))
    # transformers with the same slots masked in all layers
    lm.set_attention("eager")
    slots = len(read) + len(prompt)
    visible = torch.ones(slots, slots, dtype=torch.bool).tril()
    visible[len(read) :, [slot for slot in range(len(read)) if slot not in kept]] = False
    mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
    masks = dict.fromkeys(("full_attention", "sliding_attention"), mask)
    expected = lm.model(input_ids=torch.tensor([[*read, *prompt]]), attention_mask=masks).logits
    torch.testing.assert_close(ours, expected[:, len(read) :], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "falcon_h1", "gemma3n_text", "mamba2"])
def test_gradients_are_equal_with_recomputed_layers(kind: str) -> None:
    lm = tiny(kind)
    prefix = prefill(lm, Patch(), torch.tensor([ids(20)]))
    name = lm.linear_names()[-1]
    inputs, outputs = lm.linear_shape(name)
    gradients = []
    for context in (nullcontext, partial(gradient_checkpointing, lm)):
        torch.manual_seed(0)
        factors = torch.randn(1, 2, inputs), torch.randn(1, outputs, 2).requires_grad_()
        with context():
            patch = Patch(prefix=prefix, deltas={name: LowRank(*factors)})
            loss, _ = answer_nll(lm, patch, [(ids(8, 1), ids(4, 2))])
            (gradient,) = torch.autograd.grad(loss, factors[1])
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    assert float(gradients[0].norm()) > 0


@pytest.mark.parametrize("kind", ["minimax", "mamba"])
def test_a_scoring_forward_makes_no_opaque_cache(kind: str) -> None:
    window = Window(tiny(kind), None, 1, retain=False)
    window.feed(torch.tensor([ids(5)]))
    assert window.cache is None


def test_hidden_states_in_float32_fit_a_head_in_bfloat16() -> None:
    lm = LM(tiny_model("mamba2").to(torch.bfloat16), byte_tokenizer(), "mamba2")
    assert check_method("icl", lm) == "right"


@pytest.mark.parametrize("kind", ["lfm2", "gemma3n_text", "gemma4_text", "deepseek_v3"])
def test_slot_bytes_are_those_of_the_cache(kind: str) -> None:
    lm = tiny(kind)
    prefix = prefill(lm, Patch(), torch.tensor([ids(9)]))
    assert replace(prefix, model_cache={}).nbytes == prefix.slots * lm.slot_bytes


@torch.no_grad()
def test_a_ragged_cache_of_latents_is_read_on() -> None:
    lm, spec = tiny("deepseek_v3"), find_method("kvzip")
    method = spec.load()(lm, spec.Settings(budget=30))
    state = method.begin(1)
    for seed in range(2):
        state = method.adapt(state, [[Chunk(text=lm.decode(ids(40, seed)))]])
    assert int(state.tensors["counts"].sum()) == 30 * lm.layers


@pytest.mark.parametrize(("kind", "method"), [("lfm2", "snapkv"), ("gemma3n_text", "h2o")])
def test_methods_keep_their_promises(kind: str, method: str) -> None:
    spec = find_method(method)
    case = Case(spec, spec.test_settings or spec.Settings(), partial(tiny, kind))
    for check in PROMISES.values():
        # several contexts of unequal length in a batch are refused if the model cannot pad
        with nullcontext() if kind == "gemma3n_text" else suppress(UserError):
            check(case)


@pytest.mark.parametrize("method", ["mac", "ccm", "cartridge", "qttt"])
def test_methods_that_make_or_cut_keys_are_refused(method: str) -> None:
    spec = find_method(method)
    for kind in ("qwen3_5_text", "gemma3n_text", "minimax", "deepseek_v3"):
        with pytest.raises(UserError, match="recurrent"):
            spec.load()(tiny(kind), spec.test_settings)


@pytest.mark.parametrize("method", ["keydiff", "expected_attention", "attention_matching"])
def test_methods_that_use_the_keys_themselves_are_refused_for_latents(method: str) -> None:
    spec = find_method(method)
    with pytest.raises(UserError, match="latents"):
        spec.load()(tiny("deepseek_v3"), spec.test_settings or spec.Settings())


@pytest.mark.parametrize("method", ["templora", "distill", "uniform", "cpt", "camels"])
def test_models_without_gradients_refuse_gradient_steps(method: str) -> None:
    spec, lm = find_method(method), tiny("reformer")
    with pytest.raises(UserError, match="reformer"):
        spec.load()(lm, spec.test_settings or spec.Settings())


def test_models_without_gradients_are_not_trained() -> None:
    lora = find_method("lora").load()(tiny("reformer"), LoraSettings())
    with pytest.raises(UserError, match="reformer"):
        train(lora, [], TrainConfig(steps=1))


def test_gradients_through_an_overwritten_cache_are_refused() -> None:
    lm = tiny("mamba")
    name = lm.linear_names()[0]
    inputs, outputs = lm.linear_shape(name)
    delta = LowRank(torch.randn(1, 2, inputs), torch.randn(1, outputs, 2).requires_grad_())
    prefix = prefill(lm, Patch(deltas={name: delta}), torch.tensor([ids(20)]))
    with pytest.raises(UserError, match="gradients"):
        answer_nll(lm, Patch(prefix=prefix, deltas={name: delta}), [(ids(8, 1), ids(4, 2))])


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("in_place_ttt", "gemma3n_text"),
        ("doc_to_lora", "gemma4_text"),
        ("generative_adapter", "gemma4_text"),
    ],
)
def test_layers_with_other_linear_maps_are_refused(method: str, kind: str) -> None:
    spec = find_method(method)
    with pytest.raises(UserError, match="shape"):
        spec.load()(tiny(kind), spec.test_settings or spec.Settings())


@pytest.mark.parametrize("change", ["missing", "other", "shape"])
def test_a_state_of_another_cache_is_refused(
    ttabench: Command, change: str, tmp_path: Path
) -> None:
    """Structures of caches differ between versions of transformers."""
    base, folder = tmp_path / "base", tmp_path / "state"
    tiny_model("lfm2").save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    session = Session(str(base), "icl")
    session.read("Ada lives here.")
    tensors = dict(session.state.tensors)
    name = next(name for name in tensors if "conv_states" in name)
    value = tensors[name] if change == "other" else tensors.pop(name)
    if change != "missing":
        tensors[name if change == "shape" else "cache.layers.9.other"] = value[:, :3].clone()
    session._state = replace(session.state, tensors=tensors)
    session.save(folder)
    assert str(folder) in error_line(ttabench("ask Who? --state", folder))
    with pytest.raises(UserError, match="state"):
        Session(str(base), "icl", folder).ask("Who?")
