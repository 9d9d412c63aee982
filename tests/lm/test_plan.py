"""Which way a window attends, and that every way gives the numbers of attention written out, whatever heads see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.lm.test_patching import close, random_prefix, text
from ttabench.lm.attention import AttentionCall, observe_attention
from ttabench.lm.forward.patching import forward
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix

FEW = 5


def drawn(lm: LM, rows: int, heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(rows, heads, FEW, generator=generator) for _ in range(lm.layers)]


def hiding(lm: LM, rows: int) -> Prefix:
    """Some slots hidden from some heads."""
    bias = tuple(
        torch.zeros(each.shape).masked_fill(each > 0.3, -math.inf)
        for each in drawn(lm, rows, lm.kv_heads)
    )
    return replace(random_prefix(lm, rows, FEW), bias_LBHP=bias)


@torch.no_grad()
def test_taking_some_slots_is_hiding_the_others(lm: LM) -> None:
    """With padding, and what single heads miss; where the slots stood, keys know."""
    prefix = hiding(lm, 2)
    prefix = replace(prefix, mask_BP=torch.tensor([[False, True, True, True, True], [True] * FEW]))
    stays, ids_BT = torch.tensor([1, 2, 4]), text(2, 6)
    gone = torch.ones(FEW, dtype=torch.bool).index_fill(0, stays, False)
    assert prefix.bias_LBHP is not None
    masked = replace(
        prefix, bias_LBHP=tuple(each.masked_fill(gone, -math.inf) for each in prefix.bias_LBHP)
    )
    assert prefix.mask_BP is not None
    taken = replace(
        prefix.map_layers(lambda layer: layer.index_select(2, stays)),
        mask_BP=prefix.mask_BP[:, stays],
    )
    assert taken.keys_LBHPD[0].shape[2] == 3
    assert taken.nbytes == masked.nbytes < prefix.nbytes, (
        "slots that a head does not see are not counted"
    )
    found, wanted, whole = (
        forward(lm, Patch(prefix=each), ids_BT)[0] for each in (taken, masked, prefix)
    )
    close(found, wanted, atol=1e-5)
    assert (found - whole).abs().max() > 0.01


KINDS = ("plain", "bias", "hidden", "query-bias")
SLOTS = 6


def prefix_of(lm: LM, kind: str, rows: int) -> Prefix:
    """Slots that heads weigh otherwise, one of them by minus infinity; or miss: the first head misses all."""
    drawn, prefix = torch.Generator().manual_seed(5), random_prefix(lm, rows, SLOTS)
    biases = []
    for _ in range(lm.layers):
        bias = (
            torch.randn(
                rows, lm.heads if kind == "query-bias" else lm.kv_heads, SLOTS, generator=drawn
            )
            * 2
        )
        bias[:, 1, 2] = -math.inf
        if kind == "hidden":
            bias = torch.zeros_like(bias).masked_fill(bias > 0, -math.inf)
            bias[:, 0] = -math.inf
        biases.append(bias)
    return prefix if kind == "plain" else replace(prefix, bias_LBHP=tuple(biases))


def steps(lm: LM, prefix: Prefix, rows: int, padded: bool) -> list[Tensor]:
    """Read, decode, read on, take other rows, decode: last hidden states."""
    mask = torch.ones(rows, 5, dtype=torch.bool)
    mask[0, :3] = False
    window = Window(lm, prefix, rows, capacity=16)
    found = [window.feed(text(rows, 5), mask if padded else None)[:, -1:]]
    found += [window.feed(text(rows, 1, seed)) for seed in range(2)]
    found.append(window.feed(text(rows, 4, 9)))
    window.select(torch.tensor([rows - 1, 0, 0]))
    return [*found, window.feed(text(3, 1, 10)), window.feed(text(3, 2, 11))]


def written_out(lm: LM, prefix: Prefix, rows: int) -> Callable[[AttentionCall], Tensor]:
    """Attention as it is defined, with what heads see of the prefix, for the rows of `steps`."""

    def attend(call: AttentionCall) -> Tensor:
        share, (tokens, slots) = lm.heads // lm.kv_heads, (call.query.shape[2], call.key.shape[2])
        key, value = (each.repeat_interleave(share, dim=1) for each in (call.key, call.value))
        scores = call.query @ key.transpose(2, 3) * call.scaling
        added = torch.zeros(len(prefix.keys_LBHPD[0]), lm.heads, SLOTS)
        if prefix.bias_LBHP is not None:
            bias = prefix.bias_LBHP[call.layer]
            added = added + bias.repeat_interleave(lm.heads // bias.shape[1], dim=1)
        if len(added) > 1 and selected:
            added = added[torch.tensor([rows - 1, 0, 0])]
        scores = torch.cat([scores[..., :SLOTS] + added[:, :, None], scores[..., SLOTS:]], dim=3)
        seen = call.mask
        if seen is None:
            seen = torch.ones(tokens, slots, dtype=torch.bool).tril(slots - tokens)[None, None]
        lowest = torch.finfo(scores.dtype).min
        return (scores.masked_fill(~seen, lowest).softmax(-1) @ value).transpose(1, 2)

    selected = False
    plain = Window.select

    def select(self: Window, rows_N: Tensor) -> None:
        nonlocal selected
        selected = True
        plain(self, rows_N)

    attend.select = select  # type: ignore[attr-defined]
    return attend


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(("held", "rows"), [(1, 1), (1, 3), (3, 3)], ids=["one", "shared", "own"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_prefix_gives_the_numbers_of_attention_written_out(
    lm: LM, kind: str, held: int, rows: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = prefix_of(lm, kind, held)
    with torch.no_grad():
        ours = steps(lm, prefix, rows, padded and rows > 1)
        slow, bare = written_out(lm, prefix, rows), replace(prefix, bias_LBHP=None)
        with monkeypatch.context() as patched, observe_attention(slow):
            patched.setattr(Window, "select", slow.select)  # type: ignore[attr-defined]
            theirs = steps(lm, bare, rows, padded and rows > 1)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    if kind != "plain":
        with torch.no_grad():
            plain = steps(lm, bare, rows, padded and rows > 1)
        assert (plain[-1] - ours[-1]).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefix_with_padding_and_gradients(
    lm: LM, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts share one softmax over written scores; gradients reach the bias as through attention written out."""
    prefix, mask = prefix_of(lm, kind, 1), torch.ones(1, SLOTS, dtype=torch.bool)
    mask[0, 1] = False
    prefix = replace(prefix, mask_BP=mask, next_position_B=torch.tensor([SLOTS - 1]))
    leaves = (
        ()
        if prefix.bias_LBHP is None
        else tuple(each.requires_grad_() for each in prefix.bias_LBHP)
    )
    slow, bare = written_out(lm, prefix, 3), replace(prefix, bias_LBHP=None)
    with torch.no_grad():
        quick = steps(lm, prefix, 3, padded=True)
    ours = steps(lm, prefix, 3, padded=True)
    with monkeypatch.context() as patched, observe_attention(slow):
        patched.setattr(Window, "select", slow.select)  # type: ignore[attr-defined]
        theirs = steps(lm, bare, 3, padded=True)
    for found in (quick, ours):
        for hidden, expected in zip(found, theirs, strict=True):
            torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
    if leaves:
        sums = [
            sum(lm.logits(each).logsumexp(-1).sum() for each in found) for found in (ours, theirs)
        ]
        slopes = [torch.autograd.grad(each, leaves) for each in sums]
        for first, second in zip(*slopes, strict=True):
            close(first, second, atol=1e-4)
            assert first.abs().max() > 1e-3
