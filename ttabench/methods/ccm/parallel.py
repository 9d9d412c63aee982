"""Training CCM and Gisting: an episode is read, compressed and asked in one forward, as if it were done step by step.

Shape letters: B episodes · T tokens · E slots of merged memories · S steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ttabench.core.types import Episode, Observe
from ttabench.lm.attention.interface import Call
from ttabench.lm.forward.tokens import piece_ids
from ttabench.lm.model import LM
from ttabench.methods.ccm.settings import CcmSettings
from ttabench.methods.parts.one_forward import BEGINS, Batch, Row


def laid(lm: LM, settings: CcmSettings, episode: Episode) -> Row:
    """An episode as one row: behind every piece its COMP tokens."""
    row, start = Row(), list(lm.start_ids)
    read, done = 0, 0
    for step in episode.steps:
        if not isinstance(step, Observe):
            row.ask(lm, step, bool(done), read, memories=done)
            continue
        text, memory, block = piece_ids(lm, step, first=not read), done if settings.recursive else 0, row.next_block
        if not done:
            row.add(start, 0, block, texts=BEGINS)
        done += 1
        row.add(text, len(start) + read, block, memories=memory, texts=done)
        read += len(text)
        row.add(comp_ids(lm, settings.comp_tokens), len(start) + read, block, memories=memory, pieces=done)
    return row


def laid_whole(lm: LM, comp_tokens: int, episode: Episode) -> Row:
    """An episode as one row: before each run of questions COMP tokens that read the whole text."""
    row = Row()
    read = done = compressed = 0
    for step in episode.steps:
        if isinstance(step, Observe):
            read, done = read + row.read(lm, step, read, done), done + 1
            continue
        if compressed < done:
            first = len(lm.start_ids) + read
            row.add(comp_ids(lm, comp_tokens), first, row.next_block, reads=done, pieces=done)
            compressed = done
        row.ask(lm, step, bool(done), read, memories=done)
    return row


def comp_ids(lm: LM, comp_tokens: int) -> range:
    """Ids of the COMP tokens: those behind the vocabulary."""
    return range(lm.vocab_size, lm.vocab_size + comp_tokens)


def sees_all(batch: Batch, *, sink: bool) -> Tensor:
    """bool [B, T, T]: what stands in the row, and the COMP tokens of every piece of its memory."""
    pieces_B1T = batch.pieces_BT[:, None]
    return batch.sees(sink=sink) | (pieces_B1T > 0) & (pieces_B1T <= batch.memories_BT[:, :, None])


def sees_newest(batch: Batch) -> Tensor:
    """bool [B, T, T]: what stands in the row, and the newest COMP tokens of its memory."""
    pieces_B1T = batch.pieces_BT[:, None]
    return batch.sees() | (pieces_B1T > 0) & (pieces_B1T == batch.memories_BT[:, :, None])


def merged(batch: Batch, settings: CcmSettings, lm: LM) -> tuple[Tensor, Tensor]:
    """How much of each token's keys and values every slot of a merged memory holds, [B, E, T], and who sees it.

    Slots are those of the memory after the first piece, then of that after the second, and so on; bool [B, T, E].
    """
    comp, steps, device = settings.comp_tokens, max(1, int(batch.pieces_BT.max())), batch.ids_BT.device
    weights_SS = merge_weights(settings, steps).to(device)
    by_step_BST = weights_SS[:, (batch.pieces_BT - 1).clamp(min=0)].transpose(0, 1)
    of_kind_BnT = batch.ids_BT[:, None] == torch.tensor(comp_ids(lm, comp), device=device)[:, None]
    mix_BET = (by_step_BST[:, :, None] * of_kind_BnT[:, None]).flatten(1, 2)
    made_E = torch.arange(1, steps + 1, device=device).repeat_interleave(comp)
    return mix_BET, batch.memories_BT[:, :, None] == made_E


def merging(mix_BET: Tensor, sees_BTE: Tensor) -> Callable[[Call], Tensor]:
    """Attention of every layer, with the merged memories of all steps as further slots."""

    def attend(call: Call) -> Tensor:
        mix = mix_BET[:, None].to(call.key.dtype)
        return with_more(call, mix @ call.key, mix @ call.value, sees_BTE)

    return attend


def with_more(call: Call, key: Tensor, value: Tensor, sees_BTE: Tensor) -> Tensor:
    """Attention of one layer, [B, T, N, D], with further keys and values [B, H, E, D] that some tokens see."""
    assert call.mask is not None
    mask = torch.cat([call.mask.expand(len(sees_BTE), -1, -1, -1), sees_BTE[:, None]], 3)
    keys, values = torch.cat([call.key, key], 2), torch.cat([call.value, value], 2)
    out = scaled_dot_product_attention(call.query, keys, values, attn_mask=mask, scale=call.scaling, enable_gqa=True)
    return out.transpose(1, 2)


def merge_weights(settings: CcmSettings, steps: int) -> Tensor:
    """[S, S]: how much of each piece the memory after each step holds; rows sum to 1."""
    weights = torch.zeros(steps, steps)
    for step in range(steps):
        newest = settings.weight(step + 1)
        if step:
            weights[step] = (1 - newest) * weights[step - 1]
        weights[step, step] = newest
    return weights
