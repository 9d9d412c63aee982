"""Amortised compaction: a few slots replace the keys and values of each chunk.

Everything is read as full context. A small Perceiver per layer then writes the slots of each chunk
in one forward pass, without a gradient step. After Still (arXiv 2606.07878). Each slot has a
latent that attends to the tokens of the chunk. The latent determines how each head mixes their keys
and values, and what is added. Keys are mixed unrotated, at positions spread over the chunk.

Shape letters: B chunks · T tokens · P slots · H key/value heads · D head size · C width · E slots
of all chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from ttabench.core.types import Chunk, Episode, Query
from ttabench.lm.forward.capabilities import Rotary, get_capabilities
from ttabench.lm.forward.patching import prefill
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.parts.kept import prefix_from_tensors, prefix_tensors
from ttabench.methods.parts.one_forward import Batch, Row, Slots, episode_row, row_loss
from ttabench.methods.still import STILL, StillSettings
from ttabench.methods.trainable import Trainable


class Compactor(nn.Module):
    """Network that writes the slots of chunks in one layer, initialised as local means."""

    def __init__(self, heads: int, head_dim: int, settings: StillSettings) -> None:
        super().__init__()
        width, entries = settings.width, 2 * heads * head_dim
        self.heads = heads
        self.norm, self.enter = nn.LayerNorm(entries), nn.Linear(entries, width)
        self.latents_PC = nn.Parameter(torch.randn(settings.slots, width))
        self.attention = nn.MultiheadAttention(width, settings.heads, batch_first=True)
        self.between, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.mixes = nn.Linear(width, heads * width)
        self.mixed = nn.Linear(width, width, bias=False)
        self.changes = nn.Linear(width, entries)
        self.near = nn.Parameter(torch.tensor(4.0))
        for zero in (self.mixes.weight, self.mixes.bias, self.changes.weight, self.changes.bias):
            nn.init.zeros_(zero)

    def forward(
        self, keys_BHTD: Tensor, values_BHTD: Tensor, real_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return keys (not rotated) and values [B, H, P, D] of the slots from those of tokens."""
        both_BTHE = torch.cat([keys_BHTD, values_BHTD], 3).transpose(1, 2).float()
        tokens_BTC = self.enter(self.norm(both_BTHE.flatten(2)))
        latents_BPC = self.latents_PC.expand(len(tokens_BTC), -1, -1)
        attended_BPC, _ = self.attention(
            latents_BPC, tokens_BTC, tokens_BTC, ~real_BT, need_weights=False
        )
        latents_BPC = self.between(latents_BPC + attended_BPC)
        latents_BPC = self.after(latents_BPC + self.narrow(gelu(self.wide(latents_BPC))))
        mixes_BPHC = self.mixes(latents_BPC).unflatten(2, (self.heads, -1))
        scores_BHPT = (
            torch.einsum("bphc,btc->bhpt", mixes_BPHC, self.mixed(tokens_BTC))
            / tokens_BTC.shape[-1] ** 0.5
        )
        scores_BHPT = scores_BHPT - self.near * self._squared_distances(real_BT)[:, None]
        shares_BHPT = scores_BHPT.masked_fill(~real_BT[:, None, None], -torch.inf).softmax(-1)
        slots_BHPE = torch.einsum("bhpt,bthe->bhpe", shares_BHPT, both_BTHE)
        slots_BHPE = slots_BHPE + self.changes(latents_BPC).unflatten(
            2, (self.heads, -1)
        ).transpose(1, 2)
        keys, values = slots_BHPE.to(keys_BHTD.dtype).chunk(2, 3)
        return keys, values

    def _squared_distances(self, real_BT: Tensor) -> Tensor:
        """Return squared distances of tokens to slots, in units of the slot spacing: [B, P, T]."""
        slots = len(self.latents_PC)
        token_position_BT = (
            torch.arange(real_BT.shape[1], device=real_BT.device) + 0.5
        ) / real_BT.sum(1, keepdim=True)
        slot_position_P = (torch.arange(slots, device=real_BT.device) + 0.5) / slots
        return ((token_position_BT[:, None] - slot_position_P[:, None]) * slots).square()


class Still(Trainable[StillSettings]):
    """Amortised compaction.

    State: the keys and values of the start tokens and of the slots of all chunks.
    """

    spec = STILL
    granularity = "segment"
    supports_batching = False
    required_capabilities = ("keys", "hooks", "gaps", "shape")

    def __init__(self, lm: LM, settings: StillSettings) -> None:
        super().__init__(lm, settings)
        self.rotary: Rotary | None = get_capabilities(lm).rotary
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            layers = [Compactor(lm.kv_heads, lm.head_dim, settings) for _ in range(lm.layers)]
        self.layers = nn.ModuleList(layers).to(lm.device)

    def modules(self) -> nn.ModuleDict:
        """Return the layers, one `Compactor` each."""
        return nn.ModuleDict({"layers": self.layers})

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read all chunks as one text after the earlier slots; then write the slots of each."""
        texts = list(filter(None, new_chunk_ids(self.lm, state, chunks)[0]))
        if not texts:
            return state
        prefix = prefix_from_tensors(state.tensors)
        full = prefill(self.lm, Patch(prefix=prefix), torch.tensor([list(chain(*texts))]))
        count = sum(map(len, texts))
        before = full.keys_LBHPD[0].shape[2] - count
        first = int(full.next_position_B) - count
        spans = [
            range(end - len(text), end)
            for text, end in zip(texts, accumulate(map(len, texts)), strict=True)
        ]
        positions_1T = torch.arange(first, first + count, device=self.lm.device)[None]
        keys, values = list[Tensor](), list[Tensor]()
        for layer, pair in enumerate(zip(full.keys_LBHPD, full.values_LBHPD, strict=True)):
            new_keys, new_values = (part[:, :, before:] for part in pair)
            slots = self._write_slots(layer, new_keys, new_values, positions_1T, [spans])
            for parts, part, new in zip((keys, values), pair, slots, strict=True):
                parts.append(torch.cat([part[:, :, :before], new], 2))
        compacted = replace(full, keys_LBHPD=tuple(keys), values_LBHPD=tuple(values))
        return State(
            1, prefix_tensors(compacted), {"tokens_read": [state.meta["tokens_read"][0] + count]}
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the cache."""
        return Patch(prefix=prefix_from_tensors(state.tensors))

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean answer NLL; each episode takes one forward pass."""
        return {
            "answer": row_loss(
                self.lm,
                [self._episode_row(episode) for episode in episodes],
                {},
                slots=self._batch_slots,
            )
        }

    def _episode_row(self, episode: Episode) -> Row:
        """Lay out an episode as one row.

        Chunks attend to text since the last query, and to the slots of earlier chunks.
        """
        chunks_before_query = 0

        def add_chunk(row: Row, ids: list[int], first: int) -> None:
            if ids:
                row.texts.append(
                    row.add(
                        ids,
                        first,
                        [*row.starts, *row.texts[chunks_before_query:]],
                        chunks_before_query,
                    )
                )

        def add_query(row: Row, _: int) -> tuple[list[int], int]:
            nonlocal chunks_before_query
            chunks_before_query = len(row.texts)
            return row.starts, chunks_before_query

        return episode_row(self.lm, episode, add_chunk, add_query)

    def _batch_slots(self, rows: Sequence[Row], batch: Batch) -> Slots:
        """Return the slots of all chunks of each row."""
        spans = [[row.spans[block] for block in row.texts] for row in rows]
        max_chunks = _max_chunks(spans)
        chunk_number_E = torch.arange(1, max_chunks + 1, device=self.lm.device).repeat_interleave(
            self.settings.slots
        )
        chunk_count_B = torch.tensor([len(row_spans) for row_spans in spans], device=self.lm.device)
        sees_BTE = (chunk_number_E <= batch.memories_BT[..., None]) & (
            chunk_number_E <= chunk_count_B[:, None, None]
        )
        return lambda call: self._write_slots(
            call.layer, call.key, call.value, batch.positions_BT, spans
        ), sees_BTE

    def _write_slots(
        self,
        layer: int,
        keys_BHTD: Tensor,
        values_BHTD: Tensor,
        positions_BT: Tensor,
        spans: Sequence[Sequence[range]],
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, E, D] of the slots of these spans of each row.

        Slots of missing spans are meaningless. `keys_BHTD`: keys of a layer, rotated by the model
        to `positions_BT`.
        """
        rotate = self.rotary.rotations[layer] if self.rotary else None
        if rotate:
            keys_BHTD = rotate(keys_BHTD, positions_BT, inverse=True)
        max_chunks = _max_chunks(spans)
        padded_spans = [
            (row, span)
            for row, row_spans in enumerate(spans)
            for span in [*row_spans, *[range(1)] * (max_chunks - len(row_spans))]
        ]
        token_index_NT, real_NT = (
            part.to(self.lm.device) for part in pad([span for _, span in padded_spans], 0, "right")
        )
        lengths = real_NT.sum(1)
        row_N1 = torch.tensor([[row] for row, _ in padded_spans], device=self.lm.device)
        gathered = (
            tensor.transpose(1, 2)[row_N1, token_index_NT].transpose(1, 2)
            for tensor in (keys_BHTD, values_BHTD)
        )
        keys, values = self.layers[layer](*gathered, real_NT)
        if rotate:
            slots = self.settings.slots
            offset_NP = (
                (torch.arange(slots, device=self.lm.device) + 0.5) / slots * lengths[:, None]
            )
            keys = rotate(
                keys, positions_BT[row_N1, token_index_NT[:, :1] + offset_NP.long()], inverse=False
            )
        keys, values = (
            part.unflatten(0, (len(spans), max_chunks)).transpose(1, 2).flatten(2, 3)
            for part in (keys, values)
        )
        return keys, values


def _max_chunks(spans: Sequence[Sequence[range]]) -> int:
    """Return the largest number of chunks of a row, at least one."""
    return max(1, *map(len, spans))
