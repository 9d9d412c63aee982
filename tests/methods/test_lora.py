"""LoRA and TempLoRA: starts, steps by hand, order of scoring and training, resets, storing, and peft's own loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.reading import prompted, read, read_apart
from tests.methods.test_ccm import episodes
from tests.methods.test_generative_adapter import taught as generating
from tests.methods.test_streamadapter import taught
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, make_chunks, make_queries
from ttabench.core.errors import UserError
from ttabench.lm.forward import patching
from ttabench.lm.forward.tokens import chunk_ids
from ttabench.lm.inference import scoring
from ttabench.lm.inference.scoring import answer_nll
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods import checkpoints
from ttabench.methods.checkpoints import save_peft
from ttabench.methods.icl import InContextSettings
from ttabench.methods.icl.method import InContext
from ttabench.methods.lora import LoraSettings
from ttabench.methods.lora.method import Lora
from ttabench.methods.parts import lora
from ttabench.methods.parts.lora import split_vector
from ttabench.methods.states import load_state, save_state
from ttabench.methods.templora import TempLoraSettings, method as templora
from ttabench.methods.templora.method import TempLora
from ttabench.methods.trainable import answer_loss
from ttabench.run.evaluation import merge_checkpoint

TINY = TempLoraSettings(rank=2, alpha=4.0, prefix=8, lr=1e-2, schedule="constant", dropout=0.0)


def test_first_step_is_adams_by_hand() -> None:
    """g / (|g| + eps) times the rate, from the clipped gradient: Adam's first step, bias corrections cancelling."""
    lm = tiny_llama()
    settings = replace(TINY, epochs=1, clip=0.5)
    method = TempLora(lm, settings)
    factors = {
        name: tuple(each.clone().requires_grad_(True) for each in pair)
        for name, pair in lora.init_factors(lm, settings).items()
    }
    ids = lm.encode(TEXTS[0])
    summed, count = answer_nll(lm, Patch(deltas=lora.deltas(factors, settings)), [([], ids)])  # type: ignore[arg-type]
    (summed / count).backward()  # type: ignore[no-untyped-call]
    grads = [each.grad for pair in factors.values() for each in pair]
    norm = torch.cat([grad.flatten() for grad in grads if grad is not None]).norm()
    assert float(norm) > settings.clip
    state = read_apart(method, TEXTS[0])
    parts = split_vector(state.tensors["factors"][0], method._factors.layout)
    for name, pair in factors.items():
        for after, before in zip((parts[f"{name}.a"], parts[f"{name}.b"]), pair, strict=True):
            grad = before.grad * settings.clip / norm
            wanted = before - settings.lr * grad / (grad.abs() + settings.eps)
            torch.testing.assert_close(after, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("prefix", [1, 8, 400])
def test_a_query_stands_after_one_token_fewer_than_a_lesson(prefix: int) -> None:
    """The query brings the token that its answer is predicted from."""
    lm = tiny_llama()
    method = TempLora(lm, replace(TINY, prefix=prefix, epochs=0))
    patch, (text,) = method.patch(read_apart(method, TEXTS[0]), []), make_chunks(TEXTS[0])
    ids = chunk_ids(lm, text, first=True)
    held = [] if patch.tokens_BT is None else patch.tokens_BT[0].tolist()
    assert held == ids[max(0, len(ids) - prefix + 1) :]


def test_a_stored_state_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """Moments, counters and the randomness of dropout are in the state."""
    method = TempLora(tiny_llama(), replace(TINY, dropout=0.2, schedule="units2"))
    state = read_apart(method, *TEXTS[:2])
    save_state(tmp_path, state, {"method": "templora", "settings": {"rank": 2, "decay": 0.0}})
    belongs = {"method": "templora", "settings": {"rank": 2}}
    loaded = load_state(tmp_path, belongs, defaults={"decay": 0.0})
    with pytest.raises(UserError, match=r"decay=0\.0.*decay=0\.1"):
        load_state(tmp_path, belongs, defaults={"decay": 0.1})
    ours, theirs = (method.adapt(each, [make_chunks(TEXTS[2])]).tensors for each in (state, loaded))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_rates_and_order_of_steps_are_those_of_the_schedule() -> None:
    units = TempLora(tiny_llama(), replace(TINY, schedule="units2", epochs=2, prefix=1))
    assert units._learning_rates([0, 0, 1, 1, 2], 0) == [0.0, 0.0, 0.005, 0.005, 0.01], (
        "the first unit is skipped, as released"
    )
    assert units._learning_rates([0, 1], 2) == [0.01, 0.01]
    assert [item for _, item in units._training_steps([9], [[1, 2], [3]], 0)] == [
        ([9], [1, 2])
    ] * 2 + [([2], [3])] * 2
    cycle = TempLora(
        tiny_llama(), replace(TINY, schedule="onecycle", by="epoch", epochs=3, prefix=0)
    )
    assert [tuple(item[1]) for _, item in cycle._training_steps([], [[1, 2], [3]], 0)] == [
        (1, 2),
        (3,),
    ] * 3
    rates = cycle._learning_rates(list(range(20)), 0)
    assert max(rates) == pytest.approx(0.01)
    assert 0 < rates.index(max(rates)) < 19
    assert rates[-1] < rates[0] < max(rates) / 10
    assert cycle._learning_rates([0], 0)[0] > 0


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_full_context_is_trained_on_as_a_base_that_stands_on_it_reads(
    make: Any, tmp_path: Path
) -> None:
    """Questions between pieces and behind them, in one forward, and asked of `icl` with the deltas in the weights."""
    method = Lora(make(), LoraSettings(rank=2, alpha=4.0, full_context=True))
    generator = torch.Generator().manual_seed(1)
    for b_OR in method.b:
        b_OR.data.copy_(torch.randn(b_OR.shape, generator=generator) * 0.2)
    checkpoints.save(method, tmp_path)
    reader = InContext(merge_checkpoint(make(), tmp_path, "first"), InContextSettings())
    with torch.no_grad():
        told = method.loss_parts(episodes())["answer"]
        torch.testing.assert_close(told, answer_loss(reader, episodes()), atol=1e-4, rtol=1e-5)
        alone = Lora(make(), LoraSettings(rank=2, alpha=4.0))
        alone.modules().load_state_dict(method.modules().state_dict())
        assert (alone.loss_parts(episodes())["answer"] - told).abs() > 1e-3


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("which", ["templora", "streamadapter", "generative_adapter"])
def test_peft_loads_what_was_adapted(make: Any, which: str, tmp_path: Path) -> None:
    from peft import PeftModel

    lm = make()
    method = {"streamadapter": taught, "generative_adapter": generating}.get(which, lambda _: None)(
        lm
    )
    method = method or TempLora(lm, replace(TINY, prefix=0))
    patch = method.patch(read(method, *TEXTS), make_queries(PROMPTS[0]))
    ours = prompted(lm, patch)
    save_peft(lm, patch, tmp_path)
    base = make()
    base.model.set_attn_implementation("sdpa")
    loaded = PeftModel.from_pretrained(base.model, tmp_path)
    ids = torch.tensor([[*lm.bos_ids, *lm.encode(PROMPTS[0])]])
    with torch.no_grad():
        theirs = loaded(input_ids=ids).logits[0, len(lm.bos_ids) :]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert float((ours - prompted(lm, Patch())).abs().max()) > 1e-2


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_a_step_that_recomputes_its_layers_is_the_same_step(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = make()
    found, entered = [], []
    plain = patching.checkpoint
    monkeypatch.setattr(
        patching, "checkpoint", lambda *given, **more: entered.append(1) or plain(*given, **more)
    )
    for room in (2**40, 0):
        monkeypatch.setitem(templora.MAX_STEP_BYTES, "cpu", room)
        found.append(
            read_apart(TempLora(lm, replace(TINY, dropout=0.2)), *TEXTS[:2]).tensors["factors"]
        )
        assert bool(entered) == (room == 0)
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
    assert not any("forward" in vars(block) for block in lm.blocks())


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_head_gives_the_gradients_of_autograd(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of three tokens; and where the head is trained, it gets its own gradient."""
    lm = tiny_llama()
    monkeypatch.setitem(scoring.MAX_LOGITS_WITH_GRADIENTS, "cpu", 3 * lm.vocab_size)
    targets_N = torch.arange(8)
    hidden = [
        torch.randn(8, lm.hidden_size, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    ]
    weights_N = torch.linspace(0.5, 2, 8)
    if not frozen:
        lm.model.get_output_embeddings().requires_grad_(True)
    for each, values in zip(hidden, (scoring.logprobs_of, _plainly), strict=True):
        (values(lm, each.requires_grad_(), targets_N) * weights_N).sum().backward()
    torch.testing.assert_close(hidden[0].grad, hidden[1].grad)
    assert (lm.model.get_output_embeddings().weight.grad is None) == frozen


def _plainly(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    return lm.logits(hidden_ND).log_softmax(-1)[torch.arange(len(targets_N)), targets_N]


def test_a_forward_of_a_layers_own_is_there_again_after_layers_were_recomputed() -> None:
    lm = tiny_llama()
    block = lm.blocks()[0]
    own = block.forward = (
        block.forward
    )  # as accelerate leaves it on a model that lies on several devices
    with patching.gradient_checkpointing(lm), patching.gradient_checkpointing(lm):
        assert block.forward is not own
    assert vars(block)["forward"] is own
    assert "forward" not in vars(lm.blocks()[1])
