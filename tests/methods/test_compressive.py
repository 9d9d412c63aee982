"""Compressive Transformer: step by step and in one forward the same numbers, and what becomes of a piece."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.test_ccm import FOUR, episodes
from tests.tiny import tiny_gpt2, tiny_llama
from tests.tiny_methods import observes
from ttabench.lm.forward.patching import read
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.ccm import CompressiveSettings
from ttabench.methods.ccm.compressive import Compressive
from ttabench.methods.trainable import answer_loss

WAYS: list[dict[str, Any]] = [
    *({"pool": pool, "ratio": ratio} for pool, ratio in product(("conv", "mean", "max"), (3, 8))),
    *({"pool": pool, "slots": 2} for pool in ("mean", "max")),
]


def trained(lm: LM, **settings: Any) -> Compressive:
    """With deltas that are not zero, and kernels that are no means."""
    method = Compressive(lm, CompressiveSettings(**{"rank": 2, "ratio": 4, **settings}))
    generator = torch.Generator().manual_seed(1)
    for parameter in (*method.b, *method.kernels):
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return method


@pytest.mark.parametrize("base", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(f"{k}={v}" for k, v in way.items()))
def test_one_forward_gives_the_loss_of_reading_piece_by_piece(base: Callable[[], LM], way: dict[str, Any]) -> None:
    method = trained(base(), **way)
    with torch.no_grad():
        told = method.loss_parts(episodes())["answer"]
        torch.testing.assert_close(told, answer_loss(method, episodes()), atol=1e-4, rtol=1e-5)


def read_in(method: Compressive, texts: list[str]) -> Tensor:
    return method.adapt(method.begin(1), [[piece] for piece in observes(*texts)]).tensors["keys"]


@torch.no_grad()
def test_before_training_slots_are_the_means_of_the_base_model_s_keys() -> None:
    """A tiny Llama reads a character a token."""
    lm = tiny_llama()
    method = Compressive(lm, CompressiveSettings(rank=2, ratio=8))
    text = FOUR[0]
    whole = torch.stack(read(lm, Patch(), torch.tensor([lm.encode(text)])).keys_LBHPD)[..., len(lm.start_ids) :, :]
    slots = read_in(method, [text])
    assert slots.shape[3] == -(-whole.shape[3] // 8)
    torch.testing.assert_close(slots[..., 1, :], whole[..., 8:16, :].mean(3))
    torch.testing.assert_close(slots[..., -1, :], whole[..., 8 * (slots.shape[3] - 1) :, :].mean(3))
