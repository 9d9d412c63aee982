"""The contract matrix: every registered method keeps the same promises, on a tiny GQA Llama and a tiny GPT-2."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import PROMPTS, TEXTS, asks, episode, observes, tiny_method, trainable
from ttabench.core.registry import METHODS
from ttabench.core.types import Ask
from ttabench.lm.generation import generate
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, State
from ttabench.lm.patching import encoded, forward, select_rows, text_start
from ttabench.lm.tokens import pad
from ttabench.methods import checkpoints
from ttabench.methods.base import BaseMethod
from ttabench.methods.states import load_state, save_state

MODELS: dict[str, Callable[[], LM]] = {"llama-gqa": tiny_llama, "gpt2": tiny_gpt2}
NOISE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(params=MODELS)
def lm(request: pytest.FixtureRequest) -> LM:
    return MODELS[request.param]()


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest, lm: LM) -> BaseMethod[Any]:
    return tiny_method(request.param, lm)


def read(method: BaseMethod[Any], *texts: str) -> State:
    """One reader that has read these texts, one at a time."""
    state = method.begin(1)
    for observe in observes(*texts):
        state = method.adapt(state, [[observe]])
    return state


@torch.no_grad()
def logits(method: BaseMethod[Any], state: State, questions: list[Ask]) -> list[Tensor]:
    """Logits of each question's tokens under its patch, all in one padded batch."""
    lm = method.lm
    patch = encoded(lm, method.patch(state, questions))
    start = text_start(lm, patch)
    ids, mask = pad([start + lm.encode(ask.prompt) for ask in questions], lm.pad_id, "right")
    out, _ = forward(lm, patch, ids, mask)
    return [row[kept][len(start) :] for row, kept in zip(out, mask, strict=True)]


def answers(method: BaseMethod[Any], state: State, questions: list[Ask]) -> list[list[int]]:
    prompts = [method.lm.encode(ask.prompt) for ask in questions]
    return generate(method.lm, method.patch(state, questions), prompts, max_new_tokens=4)


def tensors_of(patch: Patch) -> list[Tensor]:
    found = [tensor for tensor in (patch.tokens_BT, patch.tokens_mask_BT) if tensor is not None]
    if patch.prefix is not None:
        found += [*patch.prefix.keys_LBHPD, *patch.prefix.values_LBHPD, patch.prefix.next_position_B]
    for delta in patch.deltas.values():
        found += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else [delta.delta]
    return found


def assert_equal(first: Patch, second: Patch) -> None:
    pairs = list(zip(tensors_of(first), tensors_of(second), strict=True))
    assert all(torch.equal(one, other) for one, other in pairs)


def test_describes_itself(method: BaseMethod[Any]) -> None:
    assert METHODS[method.name].endswith(f":{type(method).__name__}")
    assert method.summary
    assert method.trainable == bool(list(method.modules().parameters()))
    assert type(method).Settings(**asdict(method.settings)) == method.settings
    json.dumps(asdict(method.settings))


def test_asking_twice_gives_the_same_answers(method: BaseMethod[Any]) -> None:
    state, questions = read(method, *TEXTS), asks(*PROMPTS)
    assert answers(method, state, questions) == answers(method, state, questions)
    assert_equal(method.patch(state, questions), method.patch(state, questions))


def test_asking_in_another_order_gives_the_same_answers(method: BaseMethod[Any]) -> None:
    state, questions = read(method, *TEXTS), asks(*PROMPTS)
    assert answers(method, state, questions[::-1]) == answers(method, state, questions)[::-1]


def test_questions_of_one_batch_do_not_meet(method: BaseMethod[Any]) -> None:
    state, questions = read(method, *TEXTS), asks(*PROMPTS)
    for ask, together in zip(questions, logits(method, state, questions), strict=True):
        torch.testing.assert_close(together, logits(method, state, [ask])[0], **NOISE)


def test_adapting_nothing_gives_the_base_model(method: BaseMethod[Any], lm: LM) -> None:
    questions = asks(*PROMPTS)
    base = logits(tiny_method("none", lm), State(1), questions)
    for rows in (1, len(questions)):
        for ours, theirs in zip(logits(method, method.begin(rows), questions), base, strict=True):
            torch.testing.assert_close(ours, theirs, **NOISE)


def test_reading_changes_what_is_known(method: BaseMethod[Any]) -> None:
    """A guard of the tests above: what was read does arrive, unless the method declares that nothing does."""
    questions = asks(*PROMPTS)
    before, after = logits(method, method.begin(1), questions), logits(method, read(method, *TEXTS), questions)
    changed = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
    assert (changed > 1e-3) == (method.growth != "none")


def test_row_alone_equals_row_in_a_batch(method: BaseMethod[Any]) -> None:
    first = [TEXTS[0], TEXTS[1] + " And green ones, too, of all sizes.", TEXTS[2]]
    second = ["It is a harbour.", TEXTS[3], "There are terns, gulls and one old lighthouse."]
    state, questions = method.begin(3), asks(*PROMPTS)
    for chunk in (first, second):
        state = method.adapt(state, [observes(*chunk)])
    together = logits(method, state, questions)
    for row in range(3):
        alone = logits(method, read(method, first[row], second[row]), [questions[row]])
        torch.testing.assert_close(together[row], alone[0], **NOISE)


def test_patch_rows_can_be_selected(method: BaseMethod[Any]) -> None:
    state, questions = read(method, *TEXTS), asks(*PROMPTS)
    patch = method.patch(state, questions)
    if method.looks_at_question:
        chosen, expected = select_rows(patch, [2, 0]), method.patch(state, [questions[2], questions[0]])
        for one, other in zip(tensors_of(chosen), tensors_of(expected), strict=True):
            torch.testing.assert_close(one, other, **NOISE)
    else:
        assert all(tensor.shape[0] == 1 for tensor in tensors_of(patch))


def test_reading_many_equals_reading_one_by_one(method: BaseMethod[Any]) -> None:
    """Where a method says so; else what stands between two questions goes to it in one call, see `Session`."""
    if method.reads != "pieces":
        return
    questions = asks(*PROMPTS)
    at_once = method.adapt(method.begin(1), [[observe] for observe in observes(*TEXTS)])
    one_by_one = read(method, *TEXTS)
    assert at_once.meta == one_by_one.meta
    assert at_once.nbytes == one_by_one.nbytes
    for one, other in zip(logits(method, at_once, questions), logits(method, one_by_one, questions), strict=True):
        torch.testing.assert_close(one, other, **NOISE)


def test_states_are_values(method: BaseMethod[Any]) -> None:
    """Neither reading on nor asking changes a state."""
    state = read(method, TEXTS[0])
    kept = {name: tensor.clone() for name, tensor in state.tensors.items()}
    meta = json.dumps(state.meta)
    answers(method, method.adapt(state, [observes(TEXTS[1])]), asks(*PROMPTS))
    answers(method, state, asks(*PROMPTS))
    assert json.dumps(state.meta) == meta
    assert kept.keys() == state.tensors.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.tensors.items())


def test_stored_state_gives_an_equal_patch(method: BaseMethod[Any], tmp_path: Path) -> None:
    state = read(method, *TEXTS)
    belongs = {"method": method.name, "fingerprint": method.lm.fingerprint, "checkpoint": "", "settings": {}}
    save_state(tmp_path, state, belongs)
    loaded = load_state(tmp_path, belongs)
    assert_equal(method.patch(loaded, asks(*PROMPTS)), method.patch(state, asks(*PROMPTS)))
    more = observes("One more text.")
    assert_equal(
        method.patch(method.adapt(loaded, [more]), asks(*PROMPTS)),
        method.patch(method.adapt(state, [more]), asks(*PROMPTS)),
    )


def test_state_bytes_follow_growth(method: BaseMethod[Any]) -> None:
    """Pieces of one length: the state stays empty, stays as it is, or grows by the same amount."""
    sizes = [read(method, *TEXTS[:count]).nbytes for count in range(1, len(TEXTS) + 1)]
    steps = {after - before for before, after in pairwise(sizes)}
    assert len(steps) == 1, sizes
    step = steps.pop()
    expected = {"none": sizes[0] == step == 0, "constant": step == 0 < sizes[0], "linear": step > 0}
    assert expected[method.growth], sizes


def test_two_runs_with_one_seed_are_bit_equal(method: BaseMethod[Any]) -> None:
    make = tiny_llama if method.lm.kv_heads < method.lm.heads else tiny_gpt2
    again = tiny_method(method.name, make())
    first = logits(method, read(method, *TEXTS), asks(*PROMPTS))
    second = logits(again, read(again, *TEXTS), asks(*PROMPTS))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_nothing_is_left_behind_after_an_exception(method: BaseMethod[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lm = method.lm
    before, weights = hooks(lm.model), {name: p.clone() for name, p in lm.model.named_parameters()}
    state, questions = read(method, *TEXTS), asks(*PROMPTS)
    last = lm.linear_names()[-1]

    def fail(*_args: object) -> None:
        raise RuntimeError("in the middle of a forward")

    handle = lm.model.get_submodule(last).register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        logits(method, state, questions)
    handle.remove()
    assert hooks(lm.model) == before
    after = dict(lm.model.named_parameters())
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())
    assert not any(p.requires_grad for p in after.values())


@pytest.mark.parametrize("name", trainable())
def test_training_reaches_every_parameter_and_no_weight_of_the_base(lm: LM, name: str) -> None:
    method = tiny_method(name, lm)
    parts = method.loss_parts([episode("a"), episode("b", documents=2)])
    torch.stack(list(parts.values())).sum().backward()  # type: ignore[no-untyped-call]
    missing = [key for key, p in method.modules().named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing
    assert all(p.grad is None for p in lm.model.parameters())


@pytest.mark.parametrize("name", trainable())
def test_stored_checkpoint_gives_an_equal_patch(lm: LM, name: str, tmp_path: Path) -> None:
    method = tiny_method(name, lm)
    with torch.no_grad():
        for parameter in method.modules().parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    checkpoints.save(method, tmp_path)
    loaded = checkpoints.load(type(method), lm, tmp_path)
    assert_equal(loaded.patch(read(loaded, *TEXTS), asks(*PROMPTS)), method.patch(read(method, *TEXTS), asks(*PROMPTS)))
