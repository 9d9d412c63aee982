"""Weight deltas at marked tokens only, and put into the weights once for many forwards; what hooks show."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import close, full_patch, low_rank, plain, text
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.lm.forward.patching import (
    InputLocation,
    encode_patch,
    forward,
    observe_inputs,
    weight_changes,
    weights_replaced,
)
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, Patch


def all_maps(lm: LM, rows: int = 1) -> dict[str, Delta]:
    return {name: low_rank(lm, name, rows, seed) for seed, name in enumerate(lm.linear_names())}


def dense_and_low_rank(lm: LM) -> dict[str, Delta]:
    """Low-rank deltas of all maps, and dense ones: of a map that has both, a norm, and the embedding."""
    drawn, dense = torch.Generator().manual_seed(8), {}
    names = [name for name, each in lm.model.named_parameters() if each.dim() == 1][:1]
    names += [
        f"{lm.linear_names()[0]}.weight",
        next(name for name, _ in lm.model.named_parameters()),
    ]
    for name in names:
        shape = lm.model.get_parameter(name).shape
        dense[name] = Dense(torch.randn(1, *shape, generator=drawn) * 0.05)
    return {**all_maps(lm), **dense}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_deltas_as_changes_of_weights_equal_deltas_applied(lm: LM, grad: bool) -> None:
    patch, ids_BT = replace(full_patch(lm, 1), deltas=dense_and_low_rank(lm)), text(2, 6)
    with torch.set_grad_enabled(grad):
        patch = encode_patch(lm, patch)
        expected = forward(lm, patch, ids_BT)[0]
        changes = {
            name: Dense(change[None]) for name, change in weight_changes(lm, patch.deltas).items()
        }
        close(forward(lm, replace(patch, deltas=changes), ids_BT)[0], expected, atol=1e-3)
    assert (expected - forward(lm, replace(patch, deltas={}), ids_BT)[0]).abs().max() > 0.1


@pytest.mark.parametrize("made", [tiny_llama, tiny_gpt2])
def test_other_weights_take_the_place_of_parameters(made: Any) -> None:
    """A tied embedding is given once and is the head, too; gradients reach the values; all is undone."""
    lm, ids_BT = made(), text(2, 6)
    before, held = plain(lm, ids_BT), dict(lm.model.named_parameters())
    values = {name: (1.1 * weight).requires_grad_() for name, weight in held.items()}
    changes: dict[str, Delta] = {name: Dense(0.1 * weight[None]) for name, weight in held.items()}
    with weights_replaced(lm, values):
        found = forward(lm, Patch(), ids_BT)[0]
    found.sum().backward()  # type: ignore[no-untyped-call]
    close(found.detach(), forward(lm, Patch(deltas=changes), ids_BT)[0], atol=1e-4)
    assert all(value.grad is not None for value in values.values())
    with pytest.raises(ZeroDivisionError), weights_replaced(lm, values):
        _ = 1 / 0
    assert all(weight is held[name] for name, weight in lm.model.named_parameters())
    assert torch.equal(plain(lm, ids_BT), before)


def hooks(lm: LM) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in lm.model.modules()
    )


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_groups_are_shown_what_transformers_calls_hidden_states(lm: LM, grad: bool) -> None:
    ids_BT, everywhere = text(2, 9), range(lm.layers)
    with torch.set_grad_enabled(grad):
        copy = deepcopy(lm.model)  # transformers leaves hooks of its own behind
        expected = copy(input_ids=ids_BT, use_cache=False, output_hidden_states=True).hidden_states
        before = forward(lm, Patch(), ids_BT)[0]
        kept: dict[InputLocation, Tensor] = {}
        with observe_inputs(lm, kept.__setitem__, everywhere, 2):
            logits_BTV, _ = forward(lm, Patch(), ids_BT)
    assert list(kept) == list(everywhere)
    for number in range(lm.layers):
        close(kept[number], expected[number])
    close(logits_BTV, before, atol=1e-5)
    assert hooks(lm) == 0
