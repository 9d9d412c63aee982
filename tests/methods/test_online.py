"""Gradient steps on documents, one pass or several, are a plain training loop's; what stops them, and what is kept."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.methods.reading import read
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import make_chunks
from ttabench.contract.case import make_episode
from ttabench.core.errors import UserError
from ttabench.core.types import Chunk
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.online import CamelsSettings, CptSettings, OnlineSettings, SalientSettings
from ttabench.methods.online.camels import Camels
from ttabench.methods.online.method import Cpt, SalientSpans, Uniform, find_entities
from ttabench.methods.parts.lora import split_vector

TEXTS = (
    "Ada Voss lives in Port Ansel.",
    "Bo Lind collects blue stamps.",
    "Cy Marr sails, and sails back.",
)
PLAIN = OnlineSettings(lr=1e-3, dropout=False, pad_len=64)


def weights_of(method: Uniform | Cpt, state: State) -> dict[str, Tensor]:
    return split_vector(state.tensors["weights"][0], method._weights.layout)


def losses_of(model: Any, lm: LM, text: str) -> Tensor:
    ids = torch.tensor([[*lm.start_ids, *lm.encode(text)]])
    losses: Tensor = cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
    return losses


PASSES = {"lr": 1e-2, "eps": 1e-3, "epochs": 2, "dropout": False}
LOOPS: list[tuple[type[Any], OnlineSettings, list[list[int]]]] = [
    (Uniform, replace(PLAIN, lr=1e-2, eps=1e-3), [[0], [1], [2]]),
    (Cpt, CptSettings(batch=1, **PASSES), []),
    (Cpt, CptSettings(batch=2, **PASSES), []),
]
"""Method, settings and documents of each step. eps is large: Adam would scale noise in zero gradients to the rate."""


@pytest.mark.parametrize("made", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize(("cls", "settings", "steps"), LOOPS)
def test_weights_are_those_of_a_plain_training_loop(
    made: Any, cls: type[Any], settings: Any, steps: list[list[int]]
) -> None:
    lm = made()
    method = cls(lm, settings)
    state = read(method, *TEXTS)
    if cls is Cpt:
        steps = list(method.step_batches([0, 1, 2], 0))
        assert [len(step) for step in steps] == ([1] * 6 if settings.batch == 1 else [2, 1] * 2)
        assert sorted(number for step in steps for number in step) == [0, 0, 1, 1, 2, 2]
    model = deepcopy(lm.model).requires_grad_(True)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr, eps=settings.eps)
    for step in steps:
        optimiser.zero_grad()
        losses = torch.cat([losses_of(model, lm, TEXTS[number]) for number in step])
        (losses.sum() / 63 if cls is Uniform else losses.mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    ours, theirs = weights_of(method, state), dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name].detach(), atol=2e-5, rtol=1e-4)
    assert (
        max(float((ours[name] - lm.model.get_parameter(name)).abs().max()) for name in ours) > 1e-3
    )
    assert state.tensors["steps"].tolist() == [len(steps)]
    assert state.meta["tokens_read"] == [sum(len(lm.encode(text)) for text in TEXTS)]
    ids = torch.tensor([[*lm.start_ids, *lm.encode("Who sails?")]])
    with torch.no_grad():
        found, _ = forward(lm, method.patch(state, []), ids)
        torch.testing.assert_close(found, model(ids).logits, atol=1e-3, rtol=1e-3)


def test_dropout_is_drawn_from_the_seed_and_over_after_a_step() -> None:
    lm = tiny_gpt2()
    found = [
        read(Uniform(lm, replace(PLAIN, dropout=on, seed=seed)), *TEXTS)
        for on, seed in ((True, 0), (True, 0), (True, 1), (False, 0))
    ]
    first, again, other, without = (state.tensors["weights"] for state in found)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, without)
    assert not any(module.training for module in lm.model.modules())


def test_a_long_document_is_cut_and_counted() -> None:
    method = Uniform(tiny_gpt2(), replace(PLAIN, max_tokens=12))
    state = read(method, TEXTS[0], "Short.", "")
    assert state.meta["tokens_read"] == [18]
    assert state.meta["truncated_documents"] == [1]
    assert state.tensors["steps"].tolist() == [2]
    with pytest.raises(UserError, match=r"512 positions.*max_tokens"):
        read(Uniform(tiny_gpt2(), PLAIN), "word " * 200)


def test_a_loss_that_is_not_finite_stops_at_its_document() -> None:
    method = Uniform(tiny_gpt2(), replace(PLAIN, lr=1e30))
    with pytest.raises(UserError, match=r"^uniform .*'d1'.*--set lr .*1e\+30"):
        read(method, *TEXTS)


# CaMeLS

META = CamelsSettings(dropout=False, pad_len=32, kl_tokens=8, inner_lr=0.1, lr=1e-2, eps=1e-3)


def test_untrained_every_token_weighs_the_same() -> None:
    lm = tiny_llama()
    weights = Camels(lm, META).token_weights(make_chunks(TEXTS[0])[0], lm.encode(TEXTS[0]))
    torch.testing.assert_close(weights, torch.full_like(weights, math.log(2) / 3))


def test_training_lowers_its_loss() -> None:
    method = Camels(tiny_gpt2(), META)
    optimiser = torch.optim.Adam(method.modules().parameters(), lr=1e-2)
    one = make_episode("a", 2)
    before = method.validate([one])
    for _ in range(4):
        optimiser.zero_grad()
        method.accumulate_gradients([one])
        optimiser.step()
    after = method.validate([one])
    assert after["loss"] < before["loss"]


def test_episodes_one_by_one_have_the_gradient_of_their_mean() -> None:
    method, several = Camels(tiny_gpt2(), META), [make_episode("a", 2), make_episode("b", 3)]
    parameters = list(method.modules().parameters())
    wanted = torch.autograd.grad(
        torch.stack([*method.loss_parts(several).values()]).sum(), parameters
    )
    method.accumulate_gradients(several)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


# salient spans

RULE = SalientSettings(dropout=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("They met in Paris in 1999, three of them.", ["Paris", "1999"]),
        ("Ada Voss lives in Port Ansel.", ["Ada Voss", "Port Ansel"]),
        ("Trains stop. They go on to Tern Island.", ["Tern Island"]),
        ("It rained in 3021 and 99 towns.", []),
        ('He said: "Stop at O\'Hara Street."', ["O'Hara Street"]),
        ("", []),
    ],
)
def test_the_rule_finds_names_and_years(text: str, found: list[str]) -> None:
    assert [text[first:behind] for first, behind in find_entities(text)] == found


def marked(method: SalientSpans, text: str) -> str:
    """The tokens (bytes) that weigh 1."""
    ids = method.lm.encode(text)
    weights = method.token_weights(Chunk(text=text, key="d"), ids)
    assert set(weights.tolist()) <= {0.0, 1.0}
    return method.lm.decode(
        [token for token, weight in zip(ids, weights.tolist(), strict=True) if weight]
    )


def test_tokens_of_entities_weigh_one_and_blanks_nothing() -> None:
    method = SalientSpans(tiny_gpt2(), RULE)
    assert marked(method, "in Paris in 1999, three") == "Paris1999"
    assert marked(method, "in Zürich and Port Ansel") == "ZürichPortAnsel"
