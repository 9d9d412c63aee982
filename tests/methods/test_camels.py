"""CaMeLS: how it begins, and that training moves what it should."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.contract.promises import episode
from ttabench.core.types import Observe
from ttabench.methods.online import CamelsSettings, UniformSettings
from ttabench.methods.online.camels import Camels
from ttabench.methods.online.method import Uniform

PLAIN = CamelsSettings(dropout=False, pad_len=32, kl_tokens=8, inner_lr=0.1, optimizer="sgd", lr=0.1)
TEXTS = ("Ada Voss lives in Port Ansel.", "Bo Lind collects blue stamps.")


def observed() -> list[list[Observe]]:
    return [[Observe(text=text, key=text)] for text in TEXTS]


def test_untrained_it_is_uniform_with_smaller_losses() -> None:
    lm = tiny_llama()
    method = Camels(lm, PLAIN)
    weights = method.token_weights(observed()[0][0], lm.encode(TEXTS[0]))
    torch.testing.assert_close(weights, torch.full_like(weights, math.log(2) / 3))
    rate = PLAIN.lr * math.log(2) / 3
    plain = Uniform(lm, UniformSettings(dropout=False, pad_len=32, optimizer="sgd", lr=rate))
    ours, theirs = (each.adapt(each.begin(1), observed()).tensors["weights"] for each in (method, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_training_lowers_its_loss_and_drifts_until_it_is_reset() -> None:
    method = Camels(tiny_gpt2(), replace(PLAIN, reset_every=4))
    optimiser = torch.optim.Adam(method.modules().parameters(), lr=1e-2)
    one = episode("a", 2)
    before = method.validate([one])
    assert method.training_state().keys() == {"since"}
    for step in range(4):
        optimiser.zero_grad()
        method.accumulate_gradients([one])
        optimiser.step()
        carried = method.training_state()
        assert ("start" in carried) == (step % 2 == 0)
        other = Camels(method.lm, method.settings)
        other.load_training_state(carried)
        assert all(torch.equal(each, carried[name]) for name, each in other.training_state().items())
    after = method.validate([one])
    assert after["loss"] < before["loss"]
    assert after["uniform"] == before["uniform"]
