"""The tokens of one forward with their padding left out, and the attention that puts them back into rows.

    text = Text(ids_BT, positions_BT, places_X)        places_X: which of the B T tokens are no padding
    attend = Attending(text, scaling, shared, mask)
    seen_XND = attend(layer, query_XND, key_BHSD, value_BHSD)

Linear maps take tokens one by one: they are given all rows in one, without padding. Attention is given rows, where it
cannot do without: tokens meet the slots that all rows share as they are, packed.

Shape letters: B rows · T tokens · X tokens of all rows, padding left out · N query heads · H key/value heads ·
    G = N / H · S slots · D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ttabench.lm.attention.fused import across, attend_continuation, bias_of, merge_partials, of_queries, summed
from ttabench.lm.attention.interface import Shared, attend_in_parts, widened


@dataclass(frozen=True)
class Text:
    """The tokens of one forward, in rows; padding stands in rows where attention needs it and is mapped nowhere."""

    ids_BT: Tensor
    positions_BT: Tensor
    """[B or 1, T]"""
    places_X: Tensor | None = None
    """Which of the B T tokens, row after row, are no padding; None: all of them."""
    embeddings_BTC: Tensor | None = None
    """Inputs of the first layer in place of the ids' embeddings; None: these."""

    def packed(self, rows_BT: Tensor) -> Tensor:
        """[B, T, ...] without padding: [X, ...]."""
        flat = rows_BT.flatten(0, 1)
        return flat if self.places_X is None else flat.index_select(0, self.places_X)

    def in_rows(self, packed_X: Tensor) -> Tensor:
        """[X, ...] as [B, T, ...]; zeros stand for padding."""
        rows, tokens = self.ids_BT.shape
        if self.places_X is not None:
            padded = packed_X.new_zeros(rows * tokens, *packed_X.shape[1:])
            packed_X = padded.index_copy_(0, self.places_X, packed_X)
        return packed_X.view(rows, tokens, *packed_X.shape[1:])

    def heads_first(self, packed_XHD: Tensor) -> Tensor:
        """[X, H, D] as [B, H, T, D]; zeros stand for padding."""
        if self.ids_BT.shape[1] == 1:
            return packed_XHD.unsqueeze(2)
        return self.in_rows(packed_XHD).transpose(1, 2)


@dataclass(frozen=True)
class Attending:
    """Attention of one forward: what all its layers have in common is made once."""

    text: Text
    scaling: float
    shared: Sequence[Shared] | None = None
    """Tensors that a window lends, one entry a layer."""
    mask: Tensor | None = None
    """bool [B or 1, 1, T, P + S] of shared and own slots; None: every token sees all slots up to its own."""
    head_bias: Sequence[Tensor] | None = None
    """What is added to scores of the first own slots: a finite float [B or 1, H or N, P] a layer."""

    @cached_property
    def _bias(self) -> Tensor | None:
        """Of the own slots, where shared ones are attended to apart, else of all."""
        if self.mask is None:
            return None
        lent = 0 if self.shared is None else self.shared[0].keys.shape[2]
        return bias_of(self.mask[..., lent:], torch.float32)

    def __call__(self, layer: int, query_XND: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries [X, N, D] to what they attend to [X, N, D] or [X, H, G, D]; keys and values are [B, H, S, D]."""
        shared = None if self.shared is None else self.shared[layer]
        if shared is not None and shared.keys.shape[2]:
            # Own slots differ from row to row, so queries stand in rows [B, N, T, D]; shared ones take them packed.
            query = self.text.heads_first(query_XND)
            if not shared.all_seen:  # the fused kernel knows no mask by row over slots that rows share
                return self.text.packed(attend_in_parts(query * self.scaling, (key, value), shared, self.mask))
            part = summed(query, key, value, self.scaling, bias=self._bias, causal=self.mask is None)
            of_own, sum_own = (self.text.packed(tensor.transpose(1, 2)) for tensor in part)
            of_shared = across(query_XND, shared.keys, shared.values, self.scaling, shared.bias)
            return merge_partials(of_shared, (of_own, sum_own))
        added = None if self.head_bias is None else self.head_bias[layer]
        if self.text.ids_BT.shape[1] == 1:  # the query heads of one key/value head are queries of it
            query = query_XND.reshape(len(key), key.shape[1], -1, key.shape[3])
            bias = self._bias
            if added is not None:
                added = of_queries(widened(added, key.shape[2]), key.shape[1], 1)
                bias = added if bias is None else bias + added
            return scaled_dot_product_attention(query, key, value, bias, scale=self.scaling)
        return self.text.packed(self._to_own(self.text.heads_first(query_XND), key, value, added))

    def _to_own(self, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None) -> Tensor:
        """Several tokens a row, [B, N, T, D], to what the rows themselves hold, [B, H, S, D]; gives [B, T, N, D]."""
        whole, bias = self._bias is None, self._bias
        if whole and key.shape[2] > query.shape[2]:  # read on without padding: no mask is made, half the work is saved
            past = None if added is None else widened(added, key.shape[2] - query.shape[2])
            return attend_continuation(query, key, value, self.scaling, past)
        if added is not None:
            assert bias is not None, "there is a prefix"
            # [B, M, P] to [B, N, 1, S]: by query head, nothing added behind the first P slots, alike for all T tokens
            every = widened(added, key.shape[2]).repeat_interleave(query.shape[1] // added.shape[1], dim=1)
            bias = bias + every[:, :, None]
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            bias,
            is_causal=whole,
            scale=self.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2)
