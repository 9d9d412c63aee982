"""Tokens that do not simply follow each other: given embeddings, positions and masks, with prefix and deltas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import close, full_patch, low_rank, random_prefix, text
from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.lm.attention.interface import Call, watched
from ttabench.lm.forward.patching import Layout, encoded, forward, hidden_states
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch, Prefix


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


PIECES, QUERY, COMP = (4, 3, 5), 4, 2


class Memory:
    """Compressed context memory in miniature (arXiv 2312.03414): COMP tokens read a piece, deltas act at them alone."""

    def __init__(self, lm: LM) -> None:
        self.lm, drawn = lm, torch.Generator().manual_seed(6)
        self.deltas: dict[str, Delta] = {
            name: low_rank(lm, name, 1, seed) for seed, name in enumerate(lm.linear_names())
        }
        self.more_NC = (torch.randn(COMP, lm.hidden_size, generator=drawn) * 0.3).requires_grad_()
        self.pieces = [text(1, length, seed) for seed, length in enumerate(PIECES)]
        self.query = text(1, QUERY, 9)
        self.comp = torch.arange(lm.vocab_size, lm.vocab_size + COMP)[None]

    def layout(self, ids_BT: Tensor, **given: Tensor) -> Layout:
        embeddings = self.lm.embedded(ids_BT, self.more_NC)
        return Layout(embeddings_BTC=embeddings, marked_BT=ids_BT >= self.lm.vocab_size, **given)

    def recursive(self, update: Callable[[int, Prefix | None, Prefix], Prefix]) -> Tensor:
        """Logits of the query behind a memory that was updated piece by piece."""
        memory: Prefix | None = None
        read = 0
        for number, piece in enumerate(self.pieces):
            ids_BT = torch.cat([piece, self.comp], dim=1)
            read += piece.shape[1]
            _, window = hidden_states(self.lm, Patch(None, None, memory, self.deltas), ids_BT, self.layout(ids_BT))
            whole = window.prefix()
            keys, values = ([each[:, :, -COMP:] for each in part] for part in (whole.keys_LBHPD, whole.values_LBHPD))
            new = Prefix(tuple(keys), tuple(values), torch.tensor([read]))
            memory = update(number, memory, new)
        hidden_BTC, _ = hidden_states(
            self.lm, Patch(None, None, memory, self.deltas), self.query, self.layout(self.query)
        )
        return self.lm.logits(hidden_BTC)

    def in_one(self, *, slots: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids, positions, the piece of each token, and what it is: 0 text, 1 COMP, 2 a slot of merged memory."""
        ids, places, piece_of, kind, read = [], [], [], [], 0
        for number, piece in enumerate(self.pieces):
            parts = [(piece[0].tolist(), 0), (self.comp[0].tolist(), 1), *([(self.comp[0].tolist(), 2)] * slots)]
            for tokens, what in parts:
                ids += tokens
                places += range(read, read + len(tokens))
                read += len(tokens) * (what == 0)
                piece_of += [number] * len(tokens)
                kind += [what] * len(tokens)
        ids += self.query[0].tolist()
        places += range(read, read + QUERY)
        last = [len(PIECES)] * QUERY
        return (
            torch.tensor([ids]),
            torch.tensor([places]),
            torch.tensor([*piece_of, *last]),
            torch.tensor([*kind, *[0] * QUERY]),
        )


def appended(_number: int, memory: Prefix | None, new: Prefix) -> Prefix:
    if memory is None:
        return new
    joined = [
        tuple(torch.cat(pair, dim=2) for pair in zip(old, more, strict=True))
        for old, more in ((memory.keys_LBHPD, new.keys_LBHPD), (memory.values_LBHPD, new.values_LBHPD))
    ]
    return replace(new, keys_LBHPD=joined[0], values_LBHPD=joined[1])


def averaged(number: int, memory: Prefix | None, new: Prefix) -> Prefix:
    if memory is None:
        return new
    means = [
        tuple(torch.lerp(old, more, 1 / (number + 1)) for old, more in zip(*pair, strict=True))
        for pair in ((memory.keys_LBHPD, new.keys_LBHPD), (memory.values_LBHPD, new.values_LBHPD))
    ]
    return replace(new, keys_LBHPD=means[0], values_LBHPD=means[1])


@pytest.mark.usefixtures("_grad")
def test_memory_in_one_forward_equals_memory_piece_by_piece(lm: LM) -> None:
    """Concatenated memory: one forward under a mask of blocks, against one forward a piece."""
    memory = Memory(lm)
    ids_BT, places_BT, piece_S, kind_S = memory.in_one(slots=False)
    own, before = piece_S[:, None] == piece_S, piece_S[:, None] > piece_S
    sees = (own & causal(len(piece_S))[0]) | (before & (kind_S == 1))
    layout = memory.layout(ids_BT, positions_BT=places_BT, sees_BTS=sees[None])
    hidden_BTC, _ = hidden_states(lm, Patch(deltas=memory.deltas), ids_BT, layout)
    expected = memory.recursive(appended)
    close(lm.logits(hidden_BTC[:, -QUERY:]), expected)
    assert (expected - forward(lm, Patch(), memory.query)[0]).abs().max() > 0.1
    if torch.is_grad_enabled():
        slopes = [
            torch.autograd.grad(each.logsumexp(-1).sum(), memory.more_NC)[0]
            for each in (lm.logits(hidden_BTC[:, -QUERY:]), expected)
        ]
        close(slopes[0], slopes[1], atol=1e-3)
        assert slopes[0].abs().max() > 1e-3


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_merged_memory_in_one_forward(make: Callable[[], LM]) -> None:
    """Averaged memory: slots whose keys and values are means of the COMP tokens' (K' = R K), mixed by a watcher."""
    lm = make()
    memory = Memory(lm)
    ids_BT, places_BT, piece_S, kind_S = memory.in_one(slots=True)
    own, length = piece_S[:, None] == piece_S, len(piece_S)
    just_before = piece_S[:, None] == piece_S + 1
    sees = (own & causal(length)[0] & (kind_S != 2)) | (just_before & (kind_S == 2))
    sees |= torch.eye(length, dtype=torch.bool)
    mix_SS = torch.eye(length)
    for slot in (kind_S == 2).nonzero()[:, 0].tolist():
        comp = [
            at
            for at in (kind_S == 1).nonzero()[:, 0].tolist()
            if piece_S[at] <= piece_S[slot] and ids_BT[0, at] == ids_BT[0, slot]
        ]
        mix_SS[slot] = 0.0
        mix_SS[slot, comp] = 1 / len(comp)

    def mixed(call: Call) -> Tensor:
        key, value = mix_SS @ call.key, mix_SS @ call.value
        found = torch.nn.functional.scaled_dot_product_attention(
            call.query, key, value, call.mask, scale=call.scaling, enable_gqa=True
        )
        return found.transpose(1, 2)

    layout = memory.layout(ids_BT, positions_BT=places_BT, sees_BTS=sees[None])
    with watched(mixed):
        hidden_BTC, _ = hidden_states(lm, Patch(deltas=memory.deltas), ids_BT, layout)
    close(lm.logits(hidden_BTC[:, -QUERY:]), memory.recursive(averaged))
