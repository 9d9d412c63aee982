"""Tokens that do not simply follow each other: given embeddings, positions and masks, with prefix and deltas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import close, full_patch, random_prefix, text
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import encoded, forward, hidden_states
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix


def causal(length: int) -> Tensor:
    return torch.ones(1, length, length, dtype=torch.bool).tril()


@pytest.mark.usefixtures("_grad")
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("held", ["nothing", "shared", "own"])
def test_a_layout_of_what_is_usual_changes_nothing(lm: LM, held: str, side: str) -> None:
    patch = Patch() if held == "nothing" else encoded(lm, full_patch(lm, 1 if held == "shared" else 3))
    ids_BT, mask_BT = text(3, 7), torch.ones(3, 7, dtype=torch.bool)
    if side != "none":
        mask_BT[1, slice(0, 3) if side == "left" else slice(4, 7)] = False
    first = 0 if patch.prefix is None else patch.prefix.next_position_B[0]
    layout = Layout(
        positions_BT=first + mask_BT.long().cumsum(1) - 1,
        sees_BTS=causal(7),
        embeddings_BTC=lm.embedded(ids_BT),
        marked_BT=torch.ones(1, 7, dtype=torch.bool),
    )
    for given in (layout, Layout()):
        expected, usual = forward(lm, patch, ids_BT, mask_BT)
        hidden_BTC, window = hidden_states(lm, patch, ids_BT, given, mask_BT)
        assert hidden_BTC.isfinite().all()
        close(lm.logits(hidden_BTC)[mask_BT], expected[mask_BT])
        assert torch.equal(window.prefix().next_position_B, usual.prefix().next_position_B)
        more = [forward(lm, Patch(deltas=patch.deltas), text(3, 2, 9), past=each)[0] for each in (window, usual)]
        close(more[0], more[1])


def test_more_rows_of_embeddings_stand_for_ids_behind_the_vocabulary(lm: LM) -> None:
    more_NC = lm.embedded(torch.tensor([40, 41])).clone().requires_grad_()
    ids_BT = torch.tensor([[65, lm.vocab_size, 66, lm.vocab_size + 1], [lm.vocab_size + 1, 67, 68, 69]])
    plain_BT = torch.tensor([[65, 40, 66, 41], [41, 67, 68, 69]])
    patch = full_patch(lm, 2)
    hidden_BTC, _ = hidden_states(lm, patch, ids_BT, Layout(embeddings_BTC=lm.embedded(ids_BT, more_NC)))
    close(lm.logits(hidden_BTC), forward(lm, patch, plain_BT)[0])
    assert torch.equal(lm.embedded(plain_BT), lm.model.get_input_embeddings()(plain_BT))
    (slope_NC,) = torch.autograd.grad(lm.logits(hidden_BTC).logsumexp(-1).sum(), more_NC)
    assert (slope_NC.abs().amax(1) > 1e-4).all()


@pytest.mark.usefixtures("_grad")
def test_texts_side_by_side_in_one_row_equal_each_alone(lm: LM) -> None:
    """Two texts that do not see each other, behind one prefix, are two rows of a batch."""
    patch, first, second = encoded(lm, full_patch(lm, 1)), text(1, 4, 3), text(1, 5, 4)
    assert patch.prefix is not None
    start = int(patch.prefix.next_position_B)
    sees = torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).bool().tril()[None]
    places = torch.tensor([[*range(start, start + 4), *range(start, start + 5)]])
    both = Layout(sees_BTS=sees, positions_BT=places)
    hidden_BTC, window = hidden_states(lm, patch, torch.cat([first, second], dim=1), both)
    close(lm.logits(hidden_BTC[:, :4]), forward(lm, patch, first)[0])
    close(lm.logits(hidden_BTC[:, 4:]), forward(lm, patch, second)[0])
    assert window.prefix().next_position_B.tolist() == [start + 5]


@pytest.mark.usefixtures("_grad")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_mask_of_all_slots_takes_held_ones_away(lm: LM, rows: int) -> None:
    """A prefix whose second slot nobody sees is the prefix without it, shared by the rows or not."""
    prefix, ids_BT = random_prefix(lm, 1), text(rows, 6)
    keys, values = ([each[:, :, [0, 2]] for each in part] for part in (prefix.keys_LBHPD, prefix.values_LBHPD))
    fewer = Prefix(tuple(keys), tuple(values), prefix.next_position_B)
    sees = torch.cat([torch.tensor([True, False, True]).expand(1, 6, 3), causal(6)], dim=2)
    hidden_BTC, window = hidden_states(lm, Patch(prefix=prefix), ids_BT, Layout(sees_BTS=sees))
    close(lm.logits(hidden_BTC), forward(lm, Patch(prefix=fewer), ids_BT)[0])
    assert window.prefix().keys_LBHPD[0].shape[2] == 9
