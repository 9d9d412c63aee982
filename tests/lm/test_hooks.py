"""What enters layers and maps is shown as the model saw it, and nothing stays hooked."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import close, full_patch, text
from ttabench.lm.forward.hooks import Place, observe_inputs
from ttabench.lm.forward.patching import encoded, forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch


def hooks(lm: LM) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in lm.model.modules())


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_blocks_are_shown_what_transformers_calls_hidden_states(lm: LM, grad: bool) -> None:
    ids_BT, everywhere = text(2, 9), range(lm.layers)
    with torch.set_grad_enabled(grad):
        copy = deepcopy(lm.model)  # transformers leaves hooks of its own behind
        expected = copy(input_ids=ids_BT, use_cache=False, output_hidden_states=True).hidden_states
        before = forward(lm, Patch(), ids_BT)[0]
        kept: dict[Place, Tensor] = {}
        with observe_inputs(lm, kept.__setitem__, everywhere, 2):
            logits_BTV, _ = forward(lm, Patch(), ids_BT)
    assert list(kept) == list(everywhere)
    for number in range(lm.layers):
        close(kept[number], expected[number])
    close(logits_BTV, before, atol=1e-5)
    assert hooks(lm) == 0


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_maps_turn_what_was_shown_into_what_they_give(lm: LM, grad: bool) -> None:
    """In rows, whether padding was left out of the maps or not, and with deltas and a prefix in place."""
    names, given = lm.linear_names(), {}
    patch, ids_BT, mask_BT = encoded(lm, full_patch(lm, 1)), text(3, 8), torch.ones(3, 8, dtype=torch.bool)
    mask_BT[1, 5:] = False
    patch = replace(patch, deltas={})

    def keep(name: str, output: Tensor) -> None:
        given[name] = output.detach().reshape(3, 8, -1)

    handles = [
        lm.model.get_submodule(name).register_forward_hook(lambda _m, _a, out, name=name: keep(name, out))
        for name in names
    ]
    kept: dict[Place, Tensor] = {}
    with torch.set_grad_enabled(grad), observe_inputs(lm, kept.__setitem__, names, 3):
        forward(lm, patch, ids_BT, mask_BT)
    for handle in handles:
        handle.remove()
    for name in names:
        x_BTI = kept[name]
        assert x_BTI.shape == (3, 8, lm.linear_shape(name)[0])
        close(lm.model.get_submodule(name)(x_BTI)[mask_BT], given[name][mask_BT], atol=1e-5)
