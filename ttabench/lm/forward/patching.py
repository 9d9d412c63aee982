"""The frozen LM under a `Patch`: the one place where adaptation touches the base model.

    patch = encoded(lm, patch)                       tokens are read once and become keys and values
    logits_BTV, window = forward(lm, patch, ids_BT)  text rows on top of them
    hidden_BTC, window = hidden_states(lm, patch, ids_BT, layout)     tokens that stand otherwise, see `layout`

The window of a row is [prefix slots] [BOS, unless the prefix holds one] [text]. Prefix keys are used as they are; text
positions start at `prefix.next_position_B` and skip padding, so padding on either side changes nothing.
`forward` adds no BOS; `text_start` says what begins a text, and `read`, `scoring` and `generation` put it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ttabench.core.errors import UserError
from ttabench.lm.forward.deltas import deltas_applied
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch, Prefix, of_rows

BLOCK, WIDE_BLOCK = 2048, 8192
"""Tokens read by one forward: bounds a written mask to BLOCK x context. More where a GPU needs none."""


def forward(
    lm: LM,
    patch: Patch,
    ids_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    past: Window | None = None,
) -> tuple[Tensor, Window]:
    """One forward of text rows under a patch; differentiable with respect to prefix and deltas.

    Args:
        patch: of 1 or B rows; tokens in it are read first (use `encoded` once where it serves several forwards).
        ids_BT: text, BOS included where the text has one.
        mask_BT: false where padded, on either side; None when nothing is.
        past: the window of an earlier forward under the same patch, to go on from; None starts at the prefix.

    Returns:
        logits [B, T, V], and the window, which the next call may continue.

    Raises:
        UserError: the window is longer than the model's positions.
    """
    patch = encoded(lm, patch)
    hidden_BTD, window = hidden_states(lm, patch, ids_BT, None, mask_BT, past=past)
    with deltas_applied(lm, patch.deltas, len(ids_BT)):
        return lm.logits(hidden_BTD), window


def padded(lm: LM, mask_BT: Tensor | None) -> Tensor | None:
    """A mask as `Window.feed` takes it: bool where the model is, None where nothing is padded."""
    return None if mask_BT is None or bool(mask_BT.all()) else mask_BT.to(lm.device).bool()


def hidden_states(
    lm: LM, patch: Patch, ids_BT: Tensor, layout: Layout | None, mask_BT: Tensor | None = None, *,
    past: Window | None = None,
) -> tuple[Tensor, Window]:  # fmt: skip
    """One forward of tokens that stand as `layout` says, as `forward` otherwise, without the head; differentiable.

    Returns:
        last hidden states [B, T, C], of which `lm.logits` makes logits; and the window, which goes on behind the
        furthest position and sees all real slots.
    """
    patch, mask_BT = encoded(lm, patch), padded(lm, mask_BT)
    assert patch_rows(patch) in (1, len(ids_BT)), f"patch of {patch_rows(patch)} rows on a batch of {len(ids_BT)}"
    if layout is not None and layout.positions_BT is not None:
        last = layout.positions_BT.to(lm.device)
        check_fits(lm, None, [1 + int((last if mask_BT is None else last.masked_fill(~mask_BT, 0)).max())])
    elif past is None:
        check_fits(lm, patch.prefix, [ids_BT.shape[1]] if mask_BT is None else mask_BT.sum(1))
    window = past or Window(lm, patch.prefix, len(ids_BT))
    with deltas_applied(lm, patch.deltas, len(ids_BT), None if layout is None else layout.marked_BT):
        return window.feed(ids_BT.to(lm.device), mask_BT, layout), window


def read(lm: LM, patch: Patch, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Prefix:
    """Read text on top of a patch (no head, no logits).

    Args:
        patch: of 1 or B rows, as are the ids: the result has as many rows as the larger of the two.
        ids_BT: text without BOS; it is put in front unless the prefix holds one.
        mask_BT: false where padded; None when nothing is.

    Returns:
        The patch's prefix extended by the text. Reading in pieces gives the same prefix as reading at once; what the
        prefix's eviction throws away goes when something is asked.
    """
    patch = encoded(lm, patch)
    rows = max(patch_rows(patch), ids_BT.shape[0])
    ids_BT = ids_BT.to(lm.device).expand(rows, -1)
    start = text_start(lm, patch)
    check_fits(lm, patch.prefix, [len(start) + ids_BT.shape[1]] if mask_BT is None else len(start) + mask_BT.sum(1))
    mask_BT = padded(lm, mask_BT)
    if start:
        ids_BT = torch.cat([ids_BT.new_tensor(start).expand(rows, -1), ids_BT], dim=1)
    if mask_BT is not None:
        mask_BT = pad(mask_BT.expand(rows, -1), (len(start), 0), value=True)
    # In blocks: activations are those of `block` tokens, whatever the length; keys and values fill one buffer in place.
    window = Window(lm, patch.prefix, rows, room=ids_BT.shape[1], evict=False)
    block = WIDE_BLOCK if lm.device.type == "cuda" and mask_BT is None and window.unmasked else BLOCK
    with deltas_applied(lm, patch.deltas, rows):
        for begin in range(0, ids_BT.shape[1], block):
            part = slice(begin, begin + block)
            window.feed(ids_BT[:, part], None if mask_BT is None else mask_BT[:, part])
    return replace(window.prefix(), holds_bos=True)


def encoded(lm: LM, patch: Patch) -> Patch:
    """The same patch with its tokens read once, by the adapted weights on top of its prefix: prefix and deltas only.
    What is encoded already comes back as it is."""
    if patch.tokens_BT is None:
        return patch
    bare = replace(patch, tokens_BT=None, tokens_mask_BT=None)
    return replace(bare, prefix=read(lm, bare, patch.tokens_BT, patch.tokens_mask_BT))


def follows_text(patch: Patch) -> bool:
    """Whether a text under this patch goes on behind other text in the window, or begins one."""
    return patch.tokens_BT is not None or (patch.prefix is not None and patch.prefix.holds_bos)


def text_start(lm: LM, patch: Patch) -> list[int]:
    """Ids that begin a text under this (encoded) patch: `lm.start_ids`, unless the text goes on behind other text."""
    return [] if follows_text(patch) else list(lm.start_ids)


READ_LESS = "Read less (--task-set documents=N; --set truncate=left, max_tokens=N) or give a --model of more positions."


def check_fits(lm: LM, prefix: Prefix | None, counts: Sequence[int] | Tensor, hint: str = READ_LESS) -> None:
    """Whether so many more tokens of each row fit the model's positions; `hint` says what to do where they do not."""
    more_B = torch.as_tensor(counts)
    held_B = (torch.zeros(1, dtype=torch.int64) if prefix is None else prefix.next_position_B).to(more_B.device)
    worst = int((held_B + more_B).max())
    if worst > lm.max_positions:
        fault = f"A window of {worst} tokens ({int(held_B.max())} of context) exceeds the {lm.max_positions} positions"
        raise UserError(f"{fault} of {lm.name}.", hint)


def patch_rows(patch: Patch) -> int:
    """Rows of a patch: those of its largest part (each other part has as many, or 1)."""
    tensors = [t for t in (patch.tokens_BT, patch.tokens_mask_BT) if t is not None]
    if patch.prefix is not None:
        tensors += [patch.prefix.keys_LBHPD[0], patch.prefix.next_position_B]
    for delta in patch.deltas.values():
        tensors += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else []
    sizes = {1, *map(len, tensors)}
    assert len(sizes) <= 2, f"parts of a patch disagree about its rows: {sorted(sizes)}"
    return max(sizes)


def select_rows(patch: Patch, indices: Sequence[int] | Tensor) -> Patch:
    """The patch of these rows, in this order (rows may repeat). Parts of one row stay as they are, shared."""
    if patch_rows(patch) == 1:
        return patch
    index_N = torch.as_tensor(indices, dtype=torch.int64)

    def picked(delta: Delta) -> Delta:
        if isinstance(delta, Dense):
            return delta
        return replace(delta, a_BRI=of_rows(delta.a_BRI, index_N), b_BOR=of_rows(delta.b_BOR, index_N))

    return Patch(
        tokens_BT=None if patch.tokens_BT is None else of_rows(patch.tokens_BT, index_N),
        tokens_mask_BT=None if patch.tokens_mask_BT is None else of_rows(patch.tokens_mask_BT, index_N),
        prefix=None if patch.prefix is None else patch.prefix.select(index_N),
        deltas={name: picked(delta) for name, delta in patch.deltas.items()},
    )
