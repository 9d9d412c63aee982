"""Sliding windows: keep the first tokens (attention sinks) and the last tokens.

Xiao et al., arXiv 2309.17453 (released code: mit-han-lab/streaming-llm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Json, Query
from ttabench.lm.attention import (
    AttentionCall,
    MaskFunction,
    PartialAttention,
    attend_partial,
    can_merge_partials,
    mask_to_bias,
    merge_partials,
    observe_attention,
)
from ttabench.lm.forward.capabilities import Rotary
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.eviction.cache import EvictedCache, amounts_by_row, append_text
from ttabench.methods.eviction.evicting import EvictingMethod, extend_cache, prefix_with_room
from ttabench.methods.eviction.window import STREAM_BLOCK_TOKENS, WINDOW, WindowSettings
from ttabench.methods.parts.kept import append_ids, window_patch


@dataclass(frozen=True)
class BandAttention:
    """Attention observer that replaces the attention of the model."""

    sinks: int
    """First tokens of the text, visible to every token."""
    width: int
    """Last tokens that a token sees, itself included."""
    query_BT: Tensor
    """Positions of the queries."""
    key_BS: Tensor
    """Positions of the keys, -1 for padding; consecutive in the band."""
    rotary: Rotary
    is_padded: bool
    """False if every slot has the position of its index, and the queries are the last slots."""

    def __call__(self, call: AttentionCall) -> Tensor:
        """Compute the attention output [B, T, N, D] of one layer."""
        device = call.query.device
        if self.query_BT.device != device:  # layers may be on several devices
            moved = replace(self, query_BT=self.query_BT.to(device), key_BS=self.key_BS.to(device))
            return moved(call)
        rows, count, tokens, size = call.query.shape
        has_gaps = self.is_padded or call.local_mask is not None or tokens > self.width
        if not has_gaps and can_merge_partials(device):
            return self._attend_in_parts(call)
        heads = call.key.shape[1]
        key_BHDS = call.key.transpose(-1, -2)
        scores = _fold_heads(call.query, heads) @ key_BHDS
        if self.sinks:
            sink_BS = (self.key_BS >= 0) & (self.key_BS < self.sinks)
            first = int(sink_BS.any(0).long().cumsum(0).argmax()) + 1  # slots up to the last sink
            moved_query = self.rotary.move_query(
                call.query, self.query_BT, self._clamped_positions(), call.layer
            )
            to_sinks = _fold_heads(moved_query, heads) @ key_BHDS[..., :first]
            scores[..., :first] = torch.where(
                sink_BS[:, None, None, :first], to_sinks, scores[..., :first]
            )
        scores = scores.view(rows, heads, -1, tokens, scores.shape[-1]).float() * call.scaling
        hidden_B11TS = ~self.visible_slots(call.local_mask)[:, None, None]
        scores = scores.masked_fill_(hidden_B11TS, torch.finfo(torch.float32).min)
        weights_BHXS = scores.softmax(-1).to(call.value.dtype).flatten(2, 3)
        out_BHXD = weights_BHXS @ call.value
        return out_BHXD.view(rows, count, tokens, size).transpose(1, 2)

    def _attend_in_parts(self, call: AttentionCall) -> Tensor:
        """Compute the same with the fused kernel: own tokens, sinks, and the band before them."""
        query_BNTD, tokens = call.query, call.query.shape[2]
        before = call.key.shape[2] - tokens
        sinks = min(self.sinks, before)

        def attend(query_BNTD: Tensor, slots: slice, **options: Any) -> PartialAttention:
            key_BHSD, value_BHSD = call.key[:, :, slots], call.value[:, :, slots]
            return attend_partial(query_BNTD, key_BHSD, value_BHSD, call.scaling, **options)

        merged = attend(query_BNTD, slice(before, None), causal=True)
        if sinks:
            moved_query = self.rotary.move_query(
                query_BNTD, self.query_BT, self._clamped_positions(), call.layer
            )
            merged = merge_partials(merged, attend(moved_query, slice(sinks)))
        if before > sinks:
            visible_11TS = self.visible_slots(None)[:1, None, :, sinks:before]
            bias = mask_to_bias(visible_11TS, query_BNTD.dtype)
            merged = merge_partials(merged, attend(query_BNTD, slice(sinks, before), bias=bias))
        return merged[0].transpose(1, 2)

    def _clamped_positions(self) -> Tensor:
        """Return query positions for the sinks, int64 [B, T], at most the end of a full cache."""
        return self.query_BT.clamp(max=self.sinks + self.width - 1)

    def visible_slots(self, near: MaskFunction | None) -> Tensor:
        """Return the mask of visible slots, bool [B, T, S], within the local attention `near`."""
        seen_BTS = band_mask(self.sinks, self.width, self.query_BT, self.key_BS)
        if near is None:
            return seen_BTS
        key_B1S = self.key_BS[:, None]
        query_BTS = torch.where(
            key_B1S < self.sinks, self._clamped_positions()[..., None], self.query_BT[..., None]
        )
        return seen_BTS & near(0, 0, query_BTS, key_B1S)


def band_mask(sinks: int, width: int, query_BT: Tensor, key_BS: Tensor) -> Tensor:
    """Return the mask of sinks and last `width` slots, bool [B, T, S]; key -1 is padding."""
    key_B1S = key_BS[:, None]
    distance_BTS = query_BT[..., None] - key_B1S
    return (key_B1S >= 0) & (distance_BTS >= 0) & ((distance_BTS < width) | (key_B1S < sinks))


def _fold_heads(query_BNTD: Tensor, heads: int) -> Tensor:
    """Fold query heads that share keys into the time dimension: [B, H, (N/H) T, D]."""
    rows, _, _, size = query_BNTD.shape
    return query_BNTD.reshape(rows, heads, -1, size)


class SlidingWindow(EvictingMethod[WindowSettings]):
    """Cache of the first and the last tokens."""

    spec = WINDOW

    def __init__(self, lm: LM, settings: WindowSettings) -> None:
        if settings.mode == "stride":
            self.required_capabilities = ()  # only token ids are kept
        super().__init__(lm, settings)
        if settings.mode == "stride":
            self.unswapped_tensors = ("tokens", "lengths")
        if settings.mode != "postprefill":
            self.granularity = "chunk"
        if settings.mode != "stream":
            self.rotary = None
            return
        self.sinks, recent = settings.amounts(0)
        self.width = recent + (settings.evict == "after")
        self.chunk = settings.chunk or STREAM_BLOCK_TOKENS
        if self.rotary is not None:
            free = lm.max_positions - self.sinks - recent
            if free < 1:
                fault = f"{self.sinks} sinks and {recent} recent tokens use the {lm.position_limit}"
                raise UserError(f"{fault}.", "Use --set recent=N with a smaller N.")
            self.chunk = min(self.chunk, free)

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Positions of kept keys, if "auto" and mode is not stride."""
        return {} if self.settings.mode == "stride" else super().resolved_settings

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read chunks, see `EvictingMethod.adapt`; with mode=stride, keep only their last ids."""
        if self.settings.mode != "stride":
            return super().adapt(state, chunks)
        new = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        read = [
            before + len(row) for before, row in zip(state.meta["tokens_read"], new, strict=True)
        ]
        kept = append_ids(self.lm, state.tensors, new, self.settings.kept_tokens(0))
        return State(state.rows, kept, {"tokens_read": read})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Return the kept cache as a prefix; with mode=stride, the kept ids to read again."""
        if self.settings.mode == "stride":
            return window_patch(state.tensors)
        return super().patch(state, queries)

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        if self.settings.mode == "postprefill":
            return self._drop_middle(extend_cache(self.lm, kept, ids_BT, mask_BT, None))
        return self.stream(kept, ids_BT, mask_BT)[0]

    @torch.no_grad()
    def stream(
        self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor
    ) -> tuple[EvictedCache, Tensor]:
        """Read one block of a stream with the result of reading token by token.

        Args:
            mask_BT: bool, False for padding, which is in front.

        Returns:
            The kept cache, and the last hidden states [B, T, D] of the block.
        """
        start = prefix_with_room(self.lm, kept, mask_BT, self.rotary)
        window = Window(self.lm, start, ids_BT.shape[0], capacity=ids_BT.shape[1])
        real_BT = None if bool(mask_BT.all()) else mask_BT
        query_BT, key_BS = self._positions(kept, mask_BT)
        if self.rotary is None:
            layout = Layout(visible_BTS=band_mask(self.sinks, self.width, query_BT, key_BS))
            hidden_BTD = window.feed(ids_BT, real_BT, layout)
        else:
            is_padded = real_BT is not None or (kept is not None and not bool(kept.valid.all()))
            band = BandAttention(self.sinks, self.width, query_BT, key_BS, self.rotary, is_padded)
            with observe_attention(band):
                hidden_BTD = window.feed(ids_BT, real_BT)
        whole = append_text(kept, window.prefix(), mask_BT, self.rotary)
        return self._drop_middle(whole), hidden_BTD

    def _positions(self, kept: EvictedCache | None, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of a block's tokens [B, T] and of all slots [B, S], -1 for padding."""
        query_BT = mask_BT.long().cumsum(1) - 1
        key_BS = query_BT.masked_fill(~mask_BT, -1)
        if kept is not None:
            moved = self.rotary is not None
            kept_BP = kept.slots() if moved else kept.index[0, :, 0].long()
            first_B = kept.valid.sum(1) if moved else kept.next
            query_BT = first_B[:, None] + query_BT
            new_BT = query_BT.masked_fill(~mask_BT, -1)
            key_BS = torch.cat([kept_BP.masked_fill(~kept.valid, -1), new_BT], dim=1)
        return query_BT.clamp(min=0), key_BS

    def _drop_middle(self, whole: EvictedCache) -> EvictedCache:
        """Keep only sinks and recent tokens, equal in every layer and head."""
        whole = whole.compact()
        sinks_B, recent_B = amounts_by_row(self.settings.amounts, whole.next)
        equal_scores = torch.zeros(whole.valid.shape, device=whole.index.device)[None, :, None]
        return whole.evict(equal_scores, sinks_B + recent_B, first_B=sinks_B, last_B=recent_B)
