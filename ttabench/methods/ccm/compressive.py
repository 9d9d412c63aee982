"""Compressive Transformer on a frozen model: keys and values of a piece are pooled, and behind those of other pieces.

Rae et al., arXiv 1911.05507, compress what leaves a window of activations; CCM (arXiv 2312.03414, section 4) compares
with it and says no more than how much memory that takes.
Shape letters: L layers · B rows · H key/value heads · P slots · D head size · T tokens · E slots of all pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask, Episode, Observe
from ttabench.lm.attention.interface import Call, watched
from ttabench.lm.attention.layout import Layout
from ttabench.lm.forward.patching import hidden_states
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.ccm import COMPRESSIVE, CompressiveSettings
from ttabench.methods.ccm.comp_tokens import AttentionMemory, Memory, joined, memory_of, prefix_of, with_more
from ttabench.methods.parts.one_forward import Batch, Row, answer_nll, laid, mean_nll


def groups(settings: CompressiveSettings, tokens: int) -> list[range]:
    """Which tokens of a piece of this length become one slot each, slot by slot."""
    if settings.slots is None:
        starts = range(0, tokens, settings.ratio)
        return [range(start, min(start + settings.ratio, tokens)) for start in starts]
    count = min(settings.slots, tokens)
    ends = [-(-tokens * slot // count) for slot in range(count + 1)] if count else [0]
    return [range(start, end) for start, end in pairwise(ends)]


def taps_of(rows: Sequence[Sequence[Sequence[int]]], width: int) -> Tensor:
    """int64 [B, G, R] of the places of each slot's tokens, row by row; at least `width` of them a slot."""
    most = max((len(row) for row in rows), default=0)
    longest = max([width, *(len(places) for row in rows for places in row)])
    taps_BGR = torch.full((len(rows), most, longest), -1)
    for number, row in enumerate(rows):
        for slot, places in enumerate(row):
            taps_BGR[number, slot, : len(places)] = torch.tensor(places)
    return taps_BGR


def pooled(held_BHTD: Tensor, taps_BGR: Tensor, pool: str, kernel_RDD: Tensor | None) -> Tensor:
    """[B, H, G, D]; zero where a slot has no token. A convolution of fewer tokens than its kernel is scaled up."""
    heads, size = held_BHTD.shape[1], held_BHTD.shape[3]
    real_BGR1 = (taps_BGR >= 0)[..., None]
    places_BH1 = taps_BGR.clamp(min=0).flatten(1)[:, None, :, None].expand(-1, heads, -1, size)
    taken_BHGRD = held_BHTD.gather(2, places_BH1).view(*held_BHTD.shape[:2], *taps_BGR.shape[1:], size)
    count_BG1 = real_BGR1.sum(2)[:, None]
    if pool == "max":
        largest = taken_BHGRD.masked_fill(~real_BGR1[:, None], -torch.inf).amax(3)
        return largest.masked_fill(count_BG1 == 0, 0)
    taken_BHGRD = taken_BHGRD * real_BGR1[:, None]
    if pool == "mean":
        return taken_BHGRD.sum(3) / count_BG1.clamp(min=1)
    assert kernel_RDD is not None
    kernel = kernel_RDD.to(taken_BHGRD.dtype).flatten(0, 1)
    return (taken_BHGRD.flatten(3) @ kernel) * (len(kernel_RDD) / count_BG1.clamp(min=1))


class Compressive(AttentionMemory[CompressiveSettings]):
    """Pooled keys and values. State: keys and values of the slots, the position of the next text token, and which
    slots are padding, where rows have read pieces of several lengths. Its `meta` counts pieces read."""

    spec = COMPRESSIVE

    def __init__(self, lm: LM, settings: CompressiveSettings) -> None:
        super().__init__(lm, settings)
        taps, size = (settings.ratio, lm.head_dim) if settings.pool == "conv" else (0, 0)
        start = torch.eye(size).expand(lm.layers, 2, taps, size, size) / max(taps, 1)
        self.kernels = nn.ParameterList([nn.Parameter(start.clone().to(lm.device))] if taps else [])

    def modules(self) -> nn.ModuleDict:
        """a and b, one of each a linear map, and the kernels [L, keys and values, ratio, D, D] of a convolution."""
        return nn.ModuleDict({**super().modules(), "kernels": self.kernels})

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read and pool piece by piece, each behind the slots of those before it."""
        rows, counts = new_ids(self.lm, state, chunks), list(state.meta["tokens_read"])
        memory = memory_of(state)
        real_BP = state.tensors.get("real")
        if memory is not None and real_BP is None:
            real_BP = torch.ones(state.rows, memory[0].shape[3], dtype=torch.bool, device=self.lm.device)
        for number in range(len(chunks)):
            texts = [row[number] for row in rows]
            fresh, own_BP = self._read_on(memory, real_BP, texts, counts)
            memory, real_BP = joined(memory, fresh), own_BP if real_BP is None else torch.cat([real_BP, own_BP], 1)
            counts = [count + len(text) for count, text in zip(counts, texts, strict=True)]
        if memory is None or real_BP is None:
            return state
        pooled_state = self.remembered(state, memory, counts)
        padded = {} if bool(real_BP.all()) else {"real": real_BP}
        return replace(pooled_state, tensors={**pooled_state.tensors, **padded})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The slots as a prefix."""
        if (memory := memory_of(state)) is None:
            return Patch()
        return Patch(prefix=prefix_of(memory, state.tensors["next"], state.tensors.get("real")))

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Mean negative log-likelihood of the answers: each episode is read, pooled and asked in one forward."""
        return {"answer": mean_nll([self._laid(episode) for episode in episodes], self._nll)}

    def _nll(self, rows: list[Row]) -> tuple[Tensor, int]:
        lm, batch = self.lm, Batch.of(rows, self.lm)
        most = max(len(row.slots) for row in rows)
        made = [[piece for _, piece in row.slots] + [0] * (most - len(row.slots)) for row in rows]
        made_B1E = torch.tensor(made, device=lm.device)[:, None]
        sees_BTE = (made_B1E > 0) & (made_B1E <= batch.memories_BT[:, :, None])
        taps_BER = taps_of([[places for places, _ in row.slots] for row in rows], self.width).to(lm.device)
        layout = Layout(positions_BT=batch.positions_BT, sees_BTS=batch.sees(), marked_BT=batch.texts_BT > 0)
        attending = watched(self._pooling(taps_BER, sees_BTE))
        return answer_nll(lm, rows, batch, layout, self.deltas, attending)

    @property
    def width(self) -> int:
        """Tokens of a slot, at least."""
        return self.settings.ratio if self.settings.pool == "conv" else 1

    def _laid(self, episode: Episode) -> Row:
        """An episode as one row, with what becomes a slot."""

        def pool(row: Row, ids: list[int], first: int, block: int) -> None:
            begin = len(row.ids)
            row.add(ids, first, block, memories=row.done - 1, texts=row.done)
            slots = groups(self.settings, len(ids))
            row.slots += [([begin + place for place in slot], row.done) for slot in slots]

        return laid(self.lm, episode, pool, sees="memories")

    def _pooling(self, taps_BER: Tensor, sees_BTE: Tensor) -> Callable[[Call], Tensor]:
        """Attention of every layer, with the slots of all pieces behind the tokens."""

        def attend(call: Call) -> Tensor:
            key, value = (
                self._pooled(held, taps_BER, call.layer, at) for at, held in enumerate((call.key, call.value))
            )
            return with_more(call, key, value, sees_BTE)

        return attend

    def _pooled(self, held_BHTD: Tensor, taps_BGR: Tensor, layer: int, which: int) -> Tensor:
        """Keys (`which` 0) or values (1) of a layer."""
        kernel = self.kernels[0][layer, which] if len(self.kernels) else None
        return pooled(held_BHTD, taps_BGR, self.settings.pool, kernel)

    def _read_on(
        self, memory: Memory | None, real_BP: Tensor | None, texts: Sequence[list[int]], counts: Sequence[int]
    ) -> tuple[Memory, Tensor]:
        """The slots of these texts behind the memory, and which of them are no padding."""
        lm = self.lm
        tokens_BT, mask_BT = pad(list(texts), lm.pad_id, "right")
        seen = self.begun(len(texts)) if memory is None else memory
        prefix = None if seen is None else prefix_of(seen, self.next_of(counts), real_BP)
        positions_BT = torch.tensor(counts)[:, None] + len(lm.start_ids) + torch.arange(tokens_BT.shape[1])
        layout = Layout(positions_BT=positions_BT.to(lm.device))
        patch = Patch(prefix=prefix, deltas=self.deltas)
        _, window = hidden_states(lm, patch, tokens_BT.to(lm.device), layout, mask_BT.to(lm.device))
        after, size = window.prefix(), tokens_BT.shape[1]
        taps_BGR = taps_of([groups(self.settings, len(text)) for text in texts], self.width).to(lm.device)
        keys, values = (
            torch.stack([self._pooled(held[..., -size:, :], taps_BGR, at, which) for at, held in enumerate(whole)])
            for which, whole in enumerate((after.keys_LBHPD, after.values_LBHPD))
        )
        return (keys, values), (taps_BGR >= 0).any(2)
