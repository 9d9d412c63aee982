"""Muon: matrices turn by an orthogonal factor, what is no matrix is updated as by Adam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ttabench.methods.mac.latents import SlotLinear
from ttabench.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(3, 8, 5), (1, 5, 8), (2, 16, 16)])
def test_singular_values_come_near_one_and_vectors_stay(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    given = torch.randn(shape)
    turned = orthogonal(given)
    values = torch.linalg.svdvals(turned)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    around = u.mT @ turned @ v.mT
    torch.testing.assert_close(around, torch.diag_embed(around.diagonal(dim1=1, dim2=2)), atol=1e-3, rtol=0)


def test_an_update_is_about_as_large_as_one_of_adam_and_vectors_move_as_with_adam() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 32), SlotLinear(2, 64, 32), nn.Embedding(5, 64)]
    twins = [nn.Linear(64, 32), SlotLinear(2, 64, 32), nn.Embedding(5, 64)]
    one, other = nn.ModuleList(layers), nn.ModuleList(twins)
    other.load_state_dict(one.state_dict())
    before = {name: each.detach().clone() for name, each in one.named_parameters()}
    muon = Muon(one, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    adam = torch.optim.AdamW(other.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(3):
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            left.grad = torch.randn_like(left)
            right.grad = left.grad.clone()
        muon.step()
        adam.step()
    for (name, left), right in zip(one.named_parameters(), other.parameters(), strict=True):
        if name in ("0.weight", "1.weight"):
            sizes = [(each - before[name]).square().mean().sqrt().item() for each in (left, right)]
            assert 0.1 < sizes[0] / sizes[1] < 1.5
        else:
            torch.testing.assert_close(left, right)


def test_a_stack_moves_as_its_matrices_would_alone() -> None:
    torch.manual_seed(0)
    stack, gradient = SlotLinear(3, 6, 4, bias=False), torch.randn(3, 6, 4)
    alone = [SlotLinear(1, 6, 4, bias=False) for _ in range(3)]
    for place, each in enumerate(alone):
        each.weight.data.copy_(stack.weight[place : place + 1])
        each.weight.grad = gradient[place : place + 1].clone()
    stack.weight.grad = gradient
    for modules in (stack, *alone):
        Muon(modules, lr=1e-2, betas=(0.9, 0.99)).step()
    torch.testing.assert_close(stack.weight, torch.cat([each.weight for each in alone]))
