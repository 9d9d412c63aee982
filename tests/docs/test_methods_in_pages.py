"""The methods written in docs/extend/new-method.md: what the page says of them, beside the promises of the contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import Command
from tests.docs.pages import blocks
from tests.tiny import tiny_gpt2, tiny_llama, tinyllama_shaped
from tests.tiny_methods import TEXTS, asks, episode, observes
from ttabench.contract.case import Case
from ttabench.core.types import Generate
from ttabench.cost import Shape, Workload, shape_from
from ttabench.cost.load import closed_book
from ttabench.lm.forward.patching import encoded
from ttabench.lm.forward.tokens import piece_ids, prompt_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.verbs.answering import answer
from ttabench.methods.base import BaseMethod
from ttabench.methods.registry import find
from ttabench.methods.spec import MethodSpec
from ttabench.methods.trainable import Trainable, answer_loss

PAGE = "docs/extend/new-method.md"
CODE = {block.title: block.code for block in blocks("python") if block.page == PAGE}
ON_PAPER = ("ends.py", "means.py")
QUESTION = asks("Where does Ada live?")
WRITTEN = 4
"""Tokens of an answer."""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MethodSpec]:
    """By name of the file."""
    folder = tmp_path_factory.mktemp("written")
    for name, code in CODE.items():
        (folder / name).write_text(code, encoding="utf-8")
    return {name: find(str(folder / name)) for name in CODE}


def made(spec: MethodSpec, lm: LM) -> BaseMethod[Any]:
    return Case(spec, spec.checked or spec.Settings(), lambda: lm).method()


def read(method: BaseMethod[Any], count: int = len(TEXTS)) -> State:
    return method.adapt(method.begin(1), [[piece] for piece in observes(*TEXTS[:count])]) if count else method.begin(1)


def shape(lm: LM) -> Shape:
    return shape_from(lm.config.to_dict(), lm.config.model_type)


def work(lm: LM, count: int = len(TEXTS)) -> Workload:
    lengths = [len(piece_ids(lm, piece, first=not i)) for i, piece in enumerate(observes(*TEXTS[:count]))]
    asked = len(prompt_ids(lm, QUESTION[0], follows=bool(count)))
    return Workload(pieces=tuple(lengths), prompt_tokens=asked, new_tokens=WRITTEN)


def test_the_page_has_three_methods() -> None:
    assert list(CODE) == ["ends.py", "means.py", "norms.py"]


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("name", ON_PAPER)
def test_a_state_is_as_large_as_its_formula_says(specs: dict[str, MethodSpec], name: str, base: Any) -> None:
    lm = base()
    method, cost = made(specs[name], lm), specs[name].cost
    assert cost is not None
    state, paper = read(method), cost(method.settings, shape(lm), work(lm))
    assert paper is not None
    floats = sum(tensor.numel() for tensor in state.tensors.values() if tensor.is_floating_point())
    assert (paper.state_bytes, paper.state_floats) == (state.nbytes, floats)
    nothing = cost(method.settings, shape(lm), work(lm, 0))
    assert nothing is not None
    assert nothing.ask_flops == closed_book(shape(lm), work(lm, 0)).ask_flops


@pytest.mark.parametrize("name", ON_PAPER)
def test_operations_are_those_that_torch_counts(
    specs: dict[str, MethodSpec], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tinyllama_shaped()
    method, cost = made(specs[name], lm), specs[name].cost
    assert cost is not None
    monkeypatch.setattr(lm, "eos_ids", frozenset())  # no token ends an answer, so that all of it is written
    ask = [replace(QUESTION[0], want=Generate(max_new_tokens=WRITTEN))]
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        with FlopCounterMode(display=False) as adapting:
            patch = encoded(lm, method.patch(read(method), ask))
        with FlopCounterMode(display=False) as asking:
            answer(lm, patch, ask)
    paper = cost(method.settings, replace(shape(lm), dense=True), work(lm))
    assert paper is not None
    assert paper.adapt_flops == pytest.approx(adapting.get_total_flops(), rel=1e-4)
    assert paper.ask_flops == pytest.approx(asking.get_total_flops(), rel=1e-4)


def test_a_slot_of_means_is_the_mean_of_its_piece_and_weighs_as_many_tokens(specs: dict[str, MethodSpec]) -> None:
    lm = tiny_llama()
    method = made(specs["means.py"], lm)
    prefix = method.patch(read(method, 1), QUESTION).prefix
    assert prefix is not None
    plain = find("icl").load()(lm, find("icl").Settings())
    whole = plain.patch(read(plain, 1), QUESTION).prefix
    for layer in range(lm.layers):
        for slots, tokens in zip((prefix.keys_LBHPD, prefix.values_LBHPD), (whole.keys_LBHPD, whole.values_LBHPD),
                                 strict=True):  # fmt: skip
            assert torch.equal(slots[layer][:, :, 0], tokens[layer][:, :, 0])
            torch.testing.assert_close(slots[layer][:, :, 1], tokens[layer][:, :, 1:].mean(2))
    assert prefix.bias_LBHP is not None
    assert prefix.bias_LBHP[0].exp()[0, 0].tolist() == pytest.approx([1, len(lm.encode(TEXTS[0]))])


def test_the_loss_in_one_forward_is_that_of_reading_and_asking(specs: dict[str, MethodSpec]) -> None:
    method = made(specs["norms.py"], tiny_llama())
    assert isinstance(method, Trainable)
    episodes, gradients = [episode("a", 3), episode("b", 2)], []
    losses = [method.loss_parts(episodes)["answer"], answer_loss(method, episodes)]
    for loss in losses:
        gradients.append(torch.autograd.grad(loss, list(method.modules().parameters())))
    torch.testing.assert_close(*losses)
    for parallel, serial in zip(*gradients, strict=True):
        torch.testing.assert_close(parallel, serial, rtol=1e-3, atol=1e-5)


def test_the_trained_method_is_trained_and_evaluated_from_its_file(
    ttabench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("norms.py").write_text(CODE["norms.py"], encoding="utf-8")
    task = ("--method", "./norms.py", "--task", "streamingqa", "--json")
    trained = ttabench("train", *task, "--steps", "2", "--task-set", "documents=2", "--out", "made").json()
    assert trained["steps"] == 2
    (run,) = ttabench("eval", *task, "--checkpoint", "made", "--limit", "2", "--out", "runs").json()["runs"]
    assert run["config"]["method"] == "norms"
