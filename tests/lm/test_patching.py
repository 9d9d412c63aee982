"""A patch is the only thing that touches the base model: prefixes, tokens, deltas, layouts, together, and undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_gpt2, tiny_llama
from ttabench.lm import attention
from ttabench.lm.forward import patching
from ttabench.lm.forward.patching import (
    deltas_applied,
    encode_patch,
    forward,
    hidden_states,
    prefill,
    text_start,
)
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Dense, LowRank, Patch, Prefix


def text(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def random_prefix(lm: LM, rows: int, slots: int = 3, seed: int = 2) -> Prefix:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, lm.kv_heads, slots, lm.head_dim)
    keys, values = (
        [torch.randn(shape, generator=generator) for _ in range(lm.layers)] for _ in range(2)
    )
    return Prefix(tuple(keys), tuple(values), torch.full((rows,), slots))


def low_rank(lm: LM, name: str, rows: int, seed: int = 3) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    features_in, features_out = lm.linear_shape(name)
    a_BRI = torch.randn(rows, 2, features_in, generator=generator) * 0.2
    return LowRank(a_BRI, torch.randn(rows, features_out, 2, generator=generator) * 0.2)


def full_patch(lm: LM, rows: int) -> Patch:
    deltas = {name: low_rank(lm, name, rows, seed) for seed, name in enumerate(lm.linear_names())}
    return Patch(text(rows, 5, seed=7), None, random_prefix(lm, rows), deltas)


def plain(lm: LM, ids_BT: Tensor) -> Tensor:
    return lm.model(input_ids=ids_BT, use_cache=False).logits


def close(actual: Tensor, expected: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("patched", [False, True])
def test_padding_changes_nothing(lm: LM, side: str, patched: bool) -> None:
    patch = encode_patch(lm, full_patch(lm, 1)) if patched else Patch()
    ids_BT, mask_BT = text(2, 9), torch.ones(2, 9, dtype=torch.bool)
    real = slice(4, 9) if side == "left" else slice(0, 5)
    mask_BT[1] = False
    mask_BT[1, real] = True
    logits_BTV, _ = forward(lm, patch, ids_BT, mask_BT)
    assert logits_BTV.isfinite().all()
    close(logits_BTV[1:, real], forward(lm, patch, ids_BT[1:, real])[0])
    close(logits_BTV[:1], forward(lm, patch, ids_BT[:1])[0])


def test_read_text_equals_text_in_the_window(lm: LM) -> None:
    context_BT, ids_BT = text(1, 11, seed=5), text(1, 6)
    prefix = prefill(lm, Patch(), context_BT)
    start_BT = torch.tensor([list(lm.bos_ids)], dtype=torch.int64)
    expected_BTV = plain(lm, torch.cat([start_BT, context_BT, ids_BT], dim=1))[:, -6:]
    close(forward(lm, Patch(prefix=prefix), ids_BT)[0], expected_BTV)
    assert prefix.holds_bos
    assert text_start(lm, Patch(prefix=prefix)) == []
    assert text_start(lm, Patch()) == list(lm.bos_ids)


@torch.no_grad()
@pytest.mark.parametrize("block", [1, 4, 100])
def test_reading_in_chunks_equals_reading_at_once(
    lm: LM, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context_BT = text(2, 13)
    whole = prefill(lm, Patch(), context_BT)
    monkeypatch.setattr(patching, "BLOCK_TOKENS", block)
    half = prefill(lm, Patch(), context_BT[:, :6])
    pieces = prefill(lm, Patch(prefix=half), context_BT[:, 6:])
    for a, b in zip(
        whole.keys_LBHPD + whole.values_LBHPD, pieces.keys_LBHPD + pieces.values_LBHPD, strict=True
    ):
        close(a, b)
    assert torch.equal(whole.next_position_B, pieces.next_position_B)


def test_deltas_are_undone_after_an_exception(lm: LM) -> None:
    ids_BT, before = text(1, 6), dict(lm.model.named_parameters())
    expected_BTV = plain(lm, ids_BT)
    name = lm.linear_names()[0]
    weight = f"{lm.linear_names()[1]}.weight"
    deltas = {name: low_rank(lm, name, 1), weight: Dense(torch.ones_like(before[weight])[None])}

    def fail() -> None:
        with deltas_applied(lm, deltas, 1):
            assert not torch.allclose(plain(lm, ids_BT), expected_BTV)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert torch.equal(plain(lm, ids_BT), expected_BTV)
    assert all(p is before[name] for name, p in lm.model.named_parameters())
    assert list(before) == [name for name, _ in lm.model.named_parameters()]
    assert not any(module._forward_hooks for module in lm.model.modules())


@pytest.mark.parametrize("at_once", [0, 1, 2**30], ids=["fused", "row by row", "all rows"])
@pytest.mark.parametrize("padded_prefix", [False, True])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_shared_prefix_equals_its_copies(
    lm: LM, at_once: int, padded_prefix: bool, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
        monkeypatch.setattr(attention, "MAX_SCORES", {"cpu": at_once})
    prefix = random_prefix(lm, 1, slots=6)
    if padded_prefix:
        seen_BP = torch.tensor([[True, False, True, True, False, True]])
        prefix = replace(prefix, mask_BP=seen_BP, next_position_B=torch.tensor([4]))
    copies = replace(
        prefix,
        keys_LBHPD=tuple(keys.repeat(3, 1, 1, 1) for keys in prefix.keys_LBHPD),
        values_LBHPD=tuple(values.repeat(3, 1, 1, 1) for values in prefix.values_LBHPD),
    )
    ids_BT, mask_BT = text(3, 7), torch.ones(3, 7, dtype=torch.bool)
    if side != "none":
        mask_BT[1, slice(0, 3) if side == "left" else slice(4, 7)] = False
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            shared_BTV, window = forward(lm, Patch(prefix=prefix), ids_BT, mask_BT)
            copied_BTV, other = forward(lm, Patch(prefix=copies), ids_BT, mask_BT)
            close(shared_BTV[mask_BT], copied_BTV[mask_BT], atol=1e-5)
            close(
                window.prefix().keys_LBHPD[1][:, :, :6],
                other.prefix().keys_LBHPD[1][:, :, :6],
                atol=1e-5,
            )
            for held in (window, other):
                held.select(torch.tensor([2, 0, 0, 1]))
            more = [lm.logits(held.feed(text(4, 2, seed=8))) for held in (window, other)]
            close(more[0], more[1], atol=1e-5)


def test_a_token_that_sees_no_shared_slot_is_a_number_in_half_precision() -> None:
    """The lowest number of float16 and a score below -16 would be minus infinity together."""
    query, value = torch.full((2, 4, 1, 8), 4.0).half(), torch.ones(2, 2, 1, 8).half()
    lent = torch.full((1, 2, 3, 8), -4.0).half()
    shared = attention.SharedLayer(lent, lent, is_fully_visible=False)
    own_alone = torch.tensor([False, False, False, True]).expand(2, 1, 1, -1)
    out = attention.attend_shared(query, value, value, shared, own_alone, 1.0)
    assert torch.equal(out, torch.ones_like(out)), "its own slot alone"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_reading_on_in_two_parts_equals_a_mask(
    make: Callable[[], LM], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a text attend to what stands before them and to themselves, as one masked softmax would have it."""
    lm = make()
    ids = torch.randint(0, 256, (rows, 40), generator=torch.Generator().manual_seed(0))

    def hidden() -> Tensor:
        window = Window(lm, None, rows)
        with torch.no_grad():
            return torch.cat(
                [window.feed(ids[:, part]) for part in (slice(7), slice(7, 8), slice(8, 40))], dim=1
            )

    in_parts = hidden()
    for module in (
        "attention",
        "forward.window",
    ):  # told that it is causal, as a GPU is; with a mask
        monkeypatch.setattr(f"ttabench.lm.{module}.can_merge_partials", lambda _: False)
        torch.testing.assert_close(in_parts, hidden(), atol=2e-5, rtol=1e-4)


def causal(length: int) -> Tensor:
    return torch.ones(1, length, length, dtype=torch.bool).tril()


@pytest.mark.usefixtures("_grad")
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("held", ["nothing", "shared", "own"])
def test_a_layout_of_what_is_usual_changes_nothing(lm: LM, held: str, side: str) -> None:
    patch = (
        Patch()
        if held == "nothing"
        else encode_patch(lm, full_patch(lm, 1 if held == "shared" else 3))
    )
    ids_BT, mask_BT = text(3, 7), torch.ones(3, 7, dtype=torch.bool)
    if side != "none":
        mask_BT[1, slice(0, 3) if side == "left" else slice(4, 7)] = False
    first = 0 if patch.prefix is None else patch.prefix.next_position_B[0]
    layout = Layout(
        positions_BT=first + mask_BT.long().cumsum(1) - 1,
        visible_BTS=causal(7),
        embeddings_BTC=lm.embed(ids_BT),
        delta_mask_BT=torch.ones(1, 7, dtype=torch.bool),
    )
    for given in (layout, Layout()):
        expected, usual = forward(lm, patch, ids_BT, mask_BT)
        hidden_BTC, window = hidden_states(lm, patch, ids_BT, given, mask_BT)
        assert hidden_BTC.isfinite().all()
        close(lm.logits(hidden_BTC)[mask_BT], expected[mask_BT])
        assert torch.equal(window.prefix().next_position_B, usual.prefix().next_position_B)
        with deltas_applied(lm, patch.deltas, 3):
            more = [lm.logits(each.feed(text(3, 2, 9))) for each in (window, usual)]
        close(more[0], more[1])


def test_more_rows_of_embeddings_stand_for_ids_after_the_vocabulary(lm: LM) -> None:
    extra_embeddings_NC = lm.embed(torch.tensor([40, 41])).clone().requires_grad_()
    ids_BT = torch.tensor(
        [[65, lm.vocab_size, 66, lm.vocab_size + 1], [lm.vocab_size + 1, 67, 68, 69]]
    )
    plain_BT = torch.tensor([[65, 40, 66, 41], [41, 67, 68, 69]])
    patch = full_patch(lm, 2)
    hidden_BTC, _ = hidden_states(
        lm, patch, ids_BT, Layout(embeddings_BTC=lm.embed(ids_BT, extra_embeddings_NC))
    )
    close(lm.logits(hidden_BTC), forward(lm, patch, plain_BT)[0])
    assert torch.equal(lm.embed(plain_BT), lm.model.get_input_embeddings()(plain_BT))
    (slope_NC,) = torch.autograd.grad(
        lm.logits(hidden_BTC).logsumexp(-1).sum(), extra_embeddings_NC
    )
    assert (slope_NC.abs().amax(1) > 1e-4).all()


@pytest.mark.usefixtures("_grad")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_mask_of_all_slots_takes_held_ones_away(lm: LM, rows: int) -> None:
    """A prefix whose second slot nobody sees is the prefix without it, shared by the rows or not."""
    prefix, ids_BT = random_prefix(lm, 1), text(rows, 6)
    keys, values = (
        [each[:, :, [0, 2]] for each in part] for part in (prefix.keys_LBHPD, prefix.values_LBHPD)
    )
    fewer = Prefix(tuple(keys), tuple(values), prefix.next_position_B)
    sees = torch.cat([torch.tensor([True, False, True]).expand(1, 6, 3), causal(6)], dim=2)
    hidden_BTC, window = hidden_states(lm, Patch(prefix=prefix), ids_BT, Layout(visible_BTS=sees))
    close(lm.logits(hidden_BTC), forward(lm, Patch(prefix=fewer), ids_BT)[0])
    assert window.prefix().keys_LBHPD[0].shape[2] == 9
