"""What a prefix adds to the scores of its slots, head by head: -inf hides a slot, log 2 counts it twice."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from tests.lm.test_patching import close, random_prefix, text
from ttabench.lm.forward.patching import forward, read, select_rows
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix

SLOTS = 5


def drawn(lm: LM, rows: int, heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(rows, heads, SLOTS, generator=generator) for _ in range(lm.layers)]


def hiding(lm: LM, rows: int) -> tuple[Prefix, Prefix]:
    """The same slots hidden from the same heads, said in both ways."""
    prefix = random_prefix(lm, rows, SLOTS)
    hidden = tuple(each > 0.3 for each in drawn(lm, rows, lm.kv_heads))
    bias = tuple(torch.zeros(each.shape).masked_fill(each, -math.inf) for each in hidden)
    return replace(prefix, hidden_LBHP=hidden), replace(prefix, bias_LBHP=bias)


@torch.no_grad()
def test_a_bias_goes_where_its_prefix_goes(lm: LM) -> None:
    """Into what is read on top, and row by row."""
    prefix, ids_BT = replace(random_prefix(lm, 3, SLOTS), bias_LBHP=tuple(drawn(lm, 3, lm.kv_heads))), text(3, 8)
    patch = Patch(prefix=replace(prefix, holds_bos=True))
    whole = forward(lm, patch, ids_BT)[0]
    longer = read(lm, patch, ids_BT[:, :5])
    assert longer.bias_LBHP is not None
    assert longer.bias_LBHP[0].shape == (3, lm.kv_heads, SLOTS + 5)
    close(forward(lm, Patch(prefix=longer), ids_BT[:, 5:])[0], whole[:, 5:])
    for row in range(3):
        close(forward(lm, select_rows(patch, [row]), ids_BT[row : row + 1])[0], whole[row : row + 1])


@torch.no_grad()
def test_taking_some_slots_is_hiding_the_others(lm: LM) -> None:
    """With padding, and what single heads miss; where the slots stood, keys know."""
    prefix, _ = hiding(lm, 2)
    prefix = replace(prefix, mask_BP=torch.tensor([[False, True, True, True, True], [True] * SLOTS]))
    stays, ids_BT = torch.tensor([1, 2, 4]), text(2, 6)
    gone = torch.ones(SLOTS, dtype=torch.bool).index_fill(0, stays, False)
    assert prefix.hidden_LBHP is not None
    masked = replace(prefix, hidden_LBHP=tuple(each | gone for each in prefix.hidden_LBHP))
    taken = prefix.take(stays)
    assert taken.keys_LBHPD[0].shape[2] == 3
    assert taken.nbytes == masked.nbytes < prefix.nbytes, "slots that a head does not see are not counted"
    found, wanted, whole = (forward(lm, Patch(prefix=each), ids_BT)[0] for each in (taken, masked, prefix))
    close(found, wanted, atol=1e-5)
    assert (found - whole).abs().max() > 0.01
    turned = taken.take(torch.tensor([2, 0, 1]))
    close(forward(lm, Patch(prefix=turned), ids_BT)[0], found, atol=1e-5)
