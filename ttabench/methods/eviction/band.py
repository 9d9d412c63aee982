"""Attention of a stream: every token sees the first few tokens (sinks) and the last so many, itself included.

    sinks 2, band 4:   token 9 sees 0 1 . . . . 6 7 8 9

StreamingLLM, arXiv 2309.17453, section 3.2: with positions in the cache, the sinks seem to stand right before the band,
however far the text has gone. Token by token the keys are rotated anew at every step; here a whole block is read at
once: the band keeps its distances as it moves, so only the query has to be turned for the sinks, back to where it
stands when the cache is full.

Shape letters: B rows · N query heads · H key/value heads · T queries · S slots · D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.lm.attention.fused import in_two_parts, merge_partials, summed
from ttabench.lm.attention.interface import Call, MaskFunction
from ttabench.lm.forward.rotary import Rotary


@dataclass(frozen=True)
class Band:
    """A watcher that attends in place of the model's own attention.

    Args:
        sinks: first tokens of the text that everyone sees.
        width: last tokens seen, itself included.
        query_BT: position of every token read.
        key_BS: position of every slot, -1 for padding; those of the band are consecutive.
        rotary: turns queries for the sinks.
    """

    sinks: int
    width: int
    query_BT: Tensor
    key_BS: Tensor
    rotary: Rotary

    def __call__(self, call: Call) -> Tensor:
        """Attention [B, T, N, D] of one layer."""
        if self.query_BT.device != call.query.device:  # of a layer that lies elsewhere
            places = self.query_BT.to(call.query.device), self.key_BS.to(call.query.device)
            return replace(self, query_BT=places[0], key_BS=places[1])(call)
        if in_two_parts(call.query.device):
            return self._fused(call).transpose(1, 2)
        rows, count, tokens, size = call.query.shape
        heads = call.key.shape[1]
        key_BHDS = call.key.transpose(-1, -2)
        scores = _folded(call.query, heads) @ key_BHDS
        if self.sinks:
            self._turn_to_sinks(call, scores, key_BHDS)
        scores = scores.view(rows, heads, -1, tokens, scores.shape[-1]).float() * call.scaling
        scores = scores.masked_fill_(~self.seen(call.near)[:, None, None], torch.finfo(torch.float32).min)
        weights_BHXS = scores.softmax(-1).to(call.value.dtype).flatten(2, 3)
        out_BHXD = weights_BHXS @ call.value
        return out_BHXD.view(rows, count, tokens, size).transpose(1, 2)

    def _fused(self, call: Call) -> Tensor:
        """The same by kernels that write no scores: sinks and band apart where queries are turned; [B, N, T, D]."""
        seen_BTS, dtype = self.seen(call.near), call.query.dtype
        if not self.sinks:
            return summed(call.query, call.key, call.value, call.scaling, bias=_bias(seen_BTS, dtype))[0]
        sink_BS = (self.key_BS >= 0) & (self.key_BS < self.sinks)
        first = self._first(sink_BS)
        to_sinks_BTS = (seen_BTS & sink_BS[:, None])[..., :first]
        sinks = summed(
            self._turned(call), call.key[:, :, :first], call.value[:, :, :first], call.scaling,
            bias=_bias(to_sinks_BTS, dtype),
        )  # fmt: skip
        rest = _bias(seen_BTS & ~sink_BS[:, None], dtype)
        return merge_partials(sinks, summed(call.query, call.key, call.value, call.scaling, bias=rest))

    def _turned(self, call: Call) -> Tensor:
        """Queries that stand no further than the end of a full cache."""
        return self.rotary.query_at(call.query, self.query_BT, self._near(), call.layer)

    def _near(self) -> Tensor:
        """int64 [B, T]: where queries stand for the sinks."""
        return self.query_BT.clamp(max=self.sinks + self.width - 1)

    @staticmethod
    def _first(sink_BS: Tensor) -> int:
        """Slots up to the last one that is a sink."""
        return int(sink_BS.any(0).long().cumsum(0).argmax()) + 1

    def seen(self, near: MaskFunction | None) -> Tensor:
        """bool [B, T, S]: which slots each token sees; `near`: of those that the model's own window leaves."""
        seen_BTS = band(self.sinks, self.width, self.query_BT, self.key_BS)
        if near is None:
            return seen_BTS
        key_B1S = self.key_BS[:, None]
        query_BTS = torch.where(key_B1S < self.sinks, self._near()[..., None], self.query_BT[..., None])
        return seen_BTS & near(0, 0, query_BTS, key_B1S)

    def _turn_to_sinks(self, call: Call, scores_BHXS: Tensor, key_BHDS: Tensor) -> None:
        """Overwrite the scores of sinks by those of turned queries."""
        sink_BS = (self.key_BS >= 0) & (self.key_BS < self.sinks)
        first, turned = self._first(sink_BS), self._turned(call)
        to_sinks = _folded(turned, call.key.shape[1]) @ key_BHDS[..., :first]
        scores_BHXS[..., :first] = torch.where(sink_BS[:, None, None, :first], to_sinks, scores_BHXS[..., :first])


def band(sinks: int, width: int, query_BT: Tensor, key_BS: Tensor) -> Tensor:
    """bool [B, T, S]: of slots at these positions (-1: padding) the first, and the last with the token itself."""
    key_B1S, distance_BTS = key_BS[:, None], query_BT[..., None] - key_BS[:, None]
    return (key_B1S >= 0) & (distance_BTS >= 0) & ((distance_BTS < width) | (key_B1S < sinks))


def _folded(query_BNTD: Tensor, heads: int) -> Tensor:
    """[B, H, (N/H) T, D]: the queries of the heads that share keys, one after the other."""
    rows, _, _, size = query_BNTD.shape
    return query_BNTD.reshape(rows, heads, -1, size)


def _bias(seen_BTS: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, T, S]: what is added to the scores of slots that are seen, and of those that are not."""
    bias_BTS = torch.zeros_like(seen_BTS, dtype=dtype)
    return bias_BTS.masked_fill_(~seen_BTS, torch.finfo(dtype).min)[:, None]
