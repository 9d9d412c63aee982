"""Compressive Transformer on a frozen model: keys and values of each chunk are pooled and appended.

Pooling is a learned convolution with kernel size and stride `ratio`. Every layer has one for keys
and one for values, shared by its heads and initialised as the mean. Rae et al., arXiv 1911.05507,
compress activations that leave a window. CCM (arXiv 2312.03414, section 4) compares with it, and
states only its memory.

Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens · E slots of
all chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def pooling_groups(tokens: range, ratio: int) -> list[range]:
    """Return the token indices that are pooled into each slot of these tokens."""
    return [tokens[start : start + ratio] for start in range(0, len(tokens), ratio)]


def tap_indices(rows: Sequence[Sequence[Sequence[int]]], ratio: int) -> Tensor:
    """Return the token indices of each slot as int64 [B, G, R], padded with -1."""
    taps_BGR = torch.full((len(rows), max(map(len, rows), default=0), ratio), -1)
    for number, row in enumerate(rows):
        for slot, indices in enumerate(row):
            taps_BGR[number, slot, : len(indices)] = torch.tensor(indices)
    return taps_BGR


def pool_slots(source_BHTD: Tensor, taps_BGR: Tensor, kernel_RDD: Tensor) -> Tensor:
    """Pool tokens into slots [B, H, G, D]; a slot without tokens is zero.

    Sums over fewer tokens than the kernel has are scaled up.
    """
    (heads, size), real_BGR1 = source_BHTD.shape[1::2], (taps_BGR >= 0)[..., None]
    index_BH1 = taps_BGR.clamp(min=0).flatten(1)[:, None, :, None].expand(-1, heads, -1, size)
    gathered_BHGRD = source_BHTD.gather(2, index_BH1).view(
        *source_BHTD.shape[:2], *taps_BGR.shape[1:], size
    )
    gathered_BHGRD = gathered_BHGRD * real_BGR1[:, None]
    count_BG1 = real_BGR1.sum(2)[:, None].clamp(min=1)
    kernel = kernel_RDD.to(gathered_BHGRD.dtype).flatten(0, 1)
    return (gathered_BHGRD.flatten(3) @ kernel) * (len(kernel_RDD) / count_BG1).to(kernel)


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
        ratio, device = self.settings.ratio, self.lm.device
        # number of the chunk, from 1, and token indices of every slot
        slots = [
            [
                (number, group)
                for number, block in enumerate(row.texts, 1)
                for group in pooling_groups(row.spans[block], ratio)
            ]
            for row in rows
        ]
        taps_BER = tap_indices([[group for _, group in row] for row in slots], ratio).to(device)
        chunk_number_BE, _ = pad(
            [[number for number, _ in row] for row in slots], 0, "right", device
        )
        sees_BTE = (chunk_number_BE > 0)[:, None] & (
            chunk_number_BE[:, None] <= batch.memories_BT[:, :, None]
        )
        return (
            lambda call: (
                self._pool_layer(call.key, taps_BER, call.layer, 0),
                self._pool_layer(call.value, taps_BER, call.layer, 1),
            ),
            sees_BTE,
        )

    def _pool_layer(self, source_BHTD: Tensor, taps_BGR: Tensor, layer: int, kind: int) -> Tensor:
        """Pool the keys (`kind` 0) or values (1) of a layer."""
        return pool_slots(source_BHTD, taps_BGR, self.kernels[0][layer, kind])

    def _compress_text(self, memory: Memory | None, text: list[int], count: int) -> Memory:
        """Return the slots of a text that follows a memory of `count` tokens."""
        lm, next_B = self.lm, self.next_positions([count])
        prefix = memory_to_prefix(self.encode_start(1) if memory is None else memory, next_B)
        ids_1T = torch.tensor([text], device=lm.device)
        _, window = hidden_states(lm, Patch(prefix=prefix, deltas=self.deltas), ids_1T, None)
        ratio = self.settings.ratio
        taps_1GR = tap_indices([pooling_groups(range(len(text)), ratio)], ratio).to(lm.device)
        source_KLBHTD = prefix_to_memory(
            window.prefix().map_layers(lambda layer: layer[:, :, -len(text) :])
        )
        new_slots = [
            [self._pool_layer(tensor, taps_1GR, layer, kind) for layer, tensor in enumerate(layers)]
            for kind, layers in enumerate(source_KLBHTD)
        ]
        return torch.stack([torch.stack(layers) for layers in new_slots])
