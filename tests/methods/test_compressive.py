"""Compressive Transformer: step by step and in one forward the same numbers, and what becomes of a piece."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.test_ccm import FOUR, episodes
from tests.tiny import MODELS, tiny_llama, tinyllama_shaped
from tests.tiny_methods import observes
from ttabench.lm.forward.patching import read
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.methods.ccm.compressive import Compressive, groups, pooled, taps_of
from ttabench.methods.ccm.settings import CompressiveSettings
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


@pytest.mark.parametrize("base", MODELS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(f"{k}={v}" for k, v in way.items()))
def test_one_forward_gives_the_loss_of_reading_piece_by_piece(base: Callable[[], LM], way: dict[str, Any]) -> None:
    method = trained(base(), **way)
    with torch.no_grad():
        told = method.loss_parts(episodes())["answer"]
        torch.testing.assert_close(told, answer_loss(method, episodes()), atol=1e-4, rtol=1e-5)


def test_gradients_reach_the_kernels_and_not_the_base() -> None:
    lm = tiny_llama()
    method = trained(lm)
    method.loss_parts(episodes())["answer"].backward()
    (kernels,) = method.kernels
    assert kernels.grad is not None
    assert all(kernels.grad[layer, which].any() for layer in range(lm.layers) for which in range(2))
    assert all(p.grad is None for p in lm.model.parameters())


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


def test_a_later_piece_is_read_behind_the_slots_of_those_before() -> None:
    lm = tinyllama_shaped()
    method = trained(lm)
    one, other = (read_in(method, [first, "Then came May."]) for first in ("Ada keeps bees.", "Bob keeps cats."))
    alone = read_in(method, ["Then came May."])
    new = alone.shape[3]
    assert (one[..., -new:, :] - other[..., -new:, :]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("settings", "tokens", "lengths"),
    [
        ({"ratio": 4}, 9, [4, 4, 1]),
        ({"ratio": 4}, 4, [4]),
        ({"slots": 3, "pool": "mean"}, 8, [3, 3, 2]),
        ({"slots": 3, "pool": "mean"}, 2, [1, 1]),
        ({"ratio": 4}, 0, []),
        ({"slots": 3, "pool": "max"}, 0, []),
    ],
)
def test_which_tokens_become_one_slot(settings: dict[str, Any], tokens: int, lengths: list[int]) -> None:
    found = groups(CompressiveSettings(**settings), tokens)
    assert [len(group) for group in found] == lengths
    assert [token for group in found for token in group] == list(range(tokens))


def test_pooling_by_hand() -> None:
    held_BHTD = torch.tensor([[[[1.0, 10], [3, 20], [8, -4]]]])
    taps_BGR = taps_of([[[0, 1], [2]]], 2)
    assert pooled(held_BHTD, taps_BGR, "mean", None).tolist() == [[[[2, 15], [8, -4]]]]
    assert pooled(held_BHTD, taps_BGR, "max", None).tolist() == [[[[3, 20], [8, -4]]]]
    first_only = torch.stack([torch.eye(2), torch.zeros(2, 2)])
    assert pooled(held_BHTD, taps_BGR, "conv", first_only).tolist() == [[[[1, 10], [16, -8]]]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": 0}, "ratio must be at least 1"),
        ({"slots": 0, "pool": "mean"}, "slots must be at least 1"),
        ({"slots": 4}, "slots goes with pool=mean or pool=max"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompressiveSettings(**given)
