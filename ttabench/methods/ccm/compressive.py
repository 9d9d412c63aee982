"""Compressive Transformer on a frozen model: keys and values of each chunk are pooled and appended.

Pooling is a learned convolution with kernel size and stride `ratio`. Every layer has one for keys
and one for values, shared by its heads and initialised as the mean. With `slots`, a chunk is split
into that many groups of any length, and each tap of the kernel takes a part of a group. Rae et al., arXiv 1911.05507,
compress activations that leave a window. CCM (arXiv 2312.03414, section 4) compares with it, and
states only its memory.

Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens · G slots of
a row · R taps · N tokens of a tap · E slots of all chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ttabench.core.types import Chunk, Episode
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.ccm import COMPRESSIVE, CompressiveSettings
from ttabench.methods.ccm.comp_tokens import (
    AttentionMemory,
    Memory,
    concat_memories,
    memory_to_prefix,
    prefix_to_memory,
    state_to_memory,
)
from ttabench.methods.parts.one_forward import Batch, Row, Slots, episode_row, row_loss


def pooling_groups(tokens: range, settings: CompressiveSettings) -> list[list[range]]:
    """Return the token indices of each tap of the kernel, for each slot of these tokens."""
    ratio, slots = settings.ratio, settings.slots
    if slots is None:
        groups = [tokens[start : start + ratio] for start in range(0, len(tokens), ratio)]
        return [[group[tap : tap + 1] for tap in range(len(group))] for group in groups]
    return [_split(group, ratio) for group in _split(tokens, min(slots, len(tokens)))]


def _split(tokens: range, parts: int) -> list[range]:
    """Split into this number of ranges of about equal length."""
    bounds = [len(tokens) * part // parts for part in range(parts + 1)]
    return [tokens[start:end] for start, end in pairwise(bounds)]


def tap_indices(rows: Sequence[Sequence[Sequence[range]]], ratio: int) -> Tensor:
    """Return the token indices of each tap of each slot as int64 [B, G, R, N], padded with -1."""
    slots = max(map(len, rows), default=0)
    width = max((len(tap) for row in rows for slot in row for tap in slot), default=1)

    def pad_to(values: Sequence[Any], count: int, filler: Any) -> list[Any]:
        return [*values, *[filler] * (count - len(values))]

    indices = [
        [
            [pad_to(tap, width, -1) for tap in pad_to(slot, ratio, ())]
            for slot in pad_to(row, slots, ())
        ]
        for row in rows
    ]
    return torch.tensor(indices, dtype=torch.int64).view(len(rows), slots, ratio, width)


def pool_slots(source_BHTD: Tensor, taps_BGRN: Tensor, kernel_RDD: Tensor) -> Tensor:
    """Pool tokens into slots [B, H, G, D]; a slot without tokens is zero.

    The tokens of a tap are added. The sum is scaled to as many tokens as the kernel has taps.
    """
    (heads, size), real_BGRN = source_BHTD.shape[1::2], taps_BGRN >= 0
    index_BH1 = taps_BGRN.clamp(min=0).flatten(1)[:, None, :, None].expand(-1, heads, -1, size)
    gathered_BHGRND = source_BHTD.gather(2, index_BH1).view(
        *source_BHTD.shape[:2], *taps_BGRN.shape[1:], size
    )
    tap_BHGRD = (gathered_BHGRND * real_BGRN[:, None, ..., None]).sum(4)
    count_BG1 = real_BGRN.sum((2, 3))[:, None, :, None].clamp(min=1)
    kernel = kernel_RDD.to(tap_BHGRD.dtype).flatten(0, 1)
    return (tap_BHGRD.flatten(3) @ kernel) * (len(kernel_RDD) / count_BG1).to(kernel)


class Compressive(AttentionMemory[CompressiveSettings]):
    """Pooled keys and values.

    State: keys and values of the slots, and the position of the next text token.
    """

    spec = COMPRESSIVE
    supports_batching = False

    def __init__(self, lm: LM, settings: CompressiveSettings) -> None:
        super().__init__(lm, settings)
        ratio, size = settings.ratio, lm.head_dim
        mean = torch.eye(size).expand(lm.layers, 2, ratio, size, size) / ratio
        self.kernels = nn.ParameterList([nn.Parameter(mean.clone().to(lm.device))])

    def modules(self) -> nn.ModuleDict:
        """Return the LoRA factors a and b of each map, and the kernels [L, K/V, ratio, D, D]."""
        return nn.ModuleDict({**super().modules(), "kernels": self.kernels})

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read and pool chunk by chunk, each after the slots of the chunks before it."""
        (texts,) = new_chunk_ids(self.lm, state, chunks)
        (count,) = state.meta["tokens_read"]
        memory = state_to_memory(state)
        for text in filter(None, texts):
            memory = concat_memories(memory, self._compress_text(memory, text, count))
            count += len(text)
        return self.build_state(state, memory, [count])

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean answer NLL; each episode takes one forward pass."""

        def read(row: Row, ids: list[int], first: int) -> None:
            visible_blocks = row.starts if not row.texts else []
            row.texts.append(row.add(ids, first, visible_blocks, len(row.texts), marked=True))

        rows = [
            episode_row(self.lm, episode, read, lambda row, _: ([], len(row.texts)))
            for episode in episodes
        ]
        return {
            "answer": row_loss(self.lm, rows, self.deltas, marked=True, slots=self._pooled_slots)
        }

    def _pooled_slots(self, rows: Sequence[Row], batch: Batch) -> Slots:
        # number of the chunk, from 1, and token indices of every slot
        slots = [
            [
                (number, group)
                for number, block in enumerate(row.texts, 1)
                for group in pooling_groups(row.spans[block], self.settings)
            ]
            for row in rows
        ]
        taps_BERN = self._tap_indices([[group for _, group in row] for row in slots])
        chunk_number_BE, _ = pad(
            [[number for number, _ in row] for row in slots], 0, "right", self.lm.device
        )
        sees_BTE = (chunk_number_BE > 0)[:, None] & (
            chunk_number_BE[:, None] <= batch.memories_BT[:, :, None]
        )
        return (
            lambda call: (
                self._pool_layer(call.key, taps_BERN, call.layer, 0),
                self._pool_layer(call.value, taps_BERN, call.layer, 1),
            ),
            sees_BTE,
        )

    def _tap_indices(self, rows: Sequence[Sequence[Sequence[range]]]) -> Tensor:
        return tap_indices(rows, self.settings.ratio).to(self.lm.device)

    def _pool_layer(self, source_BHTD: Tensor, taps_BGRN: Tensor, layer: int, kind: int) -> Tensor:
        """Pool the keys (`kind` 0) or values (1) of a layer."""
        return pool_slots(source_BHTD, taps_BGRN, self.kernels[0][layer, kind])

    def _compress_text(self, memory: Memory | None, text: list[int], count: int) -> Memory:
        """Return the slots of a text that follows a memory of `count` tokens."""
        lm, next_B = self.lm, self.next_positions([count])
        prefix = memory_to_prefix(self.encode_start(1) if memory is None else memory, next_B)
        ids_1T = torch.tensor([text], device=lm.device)
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=self.deltas), ids_1T, None)
        taps_1GRN = self._tap_indices([pooling_groups(range(len(text)), self.settings)])
        source_KLBHTD = prefix_to_memory(
            window.prefix().map_layers(lambda layer: layer[:, :, -len(text) :])
        )
        new_slots = [
            [
                self._pool_layer(tensor, taps_1GRN, layer, kind)
                for layer, tensor in enumerate(layers)
            ]
            for kind, layers in enumerate(source_KLBHTD)
        ]
        return torch.stack([torch.stack(layers) for layers in new_slots])
