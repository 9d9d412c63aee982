"""Attention observers of a text that is read: sums of attention by slot, and attention queries.

Here a query is an attention query: one token of the text.

Shape letters: L layers · B rows · N query heads · H key/value heads · G = N / H · T queries ·
    S slots · D head size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ttabench.lm.attention import AttentionCall, observe_attention, pad_bias
from ttabench.lm.model import LM

MAX_QUERIES_PER_BLOCK = 256
"""Queries with attention weights in memory at a time."""


class TextObserver:
    """Attention observer of the counted tokens of one text, over its forward passes.

    Args:
        prefix_slots: slots of the kept cache, in front of the text.
        counted_BT: bool, True for tokens that count.
    """

    def __init__(self, layers: int, prefix_slots: int, counted_BT: Tensor) -> None:
        self._prefix_slots = prefix_slots
        self._counted_BT = counted_BT
        self._by_layer: list[Tensor | None] = [None] * layers

    def __call__(self, call: AttentionCall) -> None:
        """Observe one forward pass of one layer."""
        tokens, slots = call.query.shape[2], call.key.shape[2]
        # tokens of the text that earlier forward passes have read
        tokens_before = slots - tokens - self._prefix_slots
        counted_BT = self._counted_BT[:, tokens_before : tokens_before + tokens]
        self._by_layer[call.layer] = self._add(self._by_layer[call.layer], call, counted_BT)

    @abstractmethod
    def _add(self, before: Tensor | None, call: AttentionCall, counted_BT: Tensor) -> Tensor:
        """Return the result of a layer after one more forward pass."""

    def total(self) -> Tensor:
        """Return the results of all layers, [L, ...]."""
        known = [part for part in self._by_layer if part is not None]
        assert len(known) == len(self._by_layer), "a layer was not observed"
        return torch.stack([part.to(self._counted_BT.device) for part in known])


class ColumnSums(TextObserver):
    """Observer that adds up `column_sums`, float32 [L, B, N, S]."""

    def _add(self, before: Tensor | None, call: AttentionCall, counted_BT: Tensor) -> Tensor:
        sums_BNS = column_sums(call, counted_BT)
        if before is not None:
            sums_BNS[..., : before.shape[-1]] += before
        return sums_BNS


class QueryStore(TextObserver):
    """Observer that stores the queries of columns with a counted token, scaled, [L, B, N, T, D]."""

    def _add(self, before: Tensor | None, call: AttentionCall, counted_BT: Tensor) -> Tensor:
        if call.is_sharing:
            assert before is not None, "a layer shares keys of an earlier one"
            return before
        counted_T = counted_BT.any(0).to(call.query.device)
        queries_BNTD = call.query[:, :, counted_T] * call.scaling
        return queries_BNTD if before is None else torch.cat([before, queries_BNTD], dim=2)


def column_sums(call: AttentionCall, counted_BT: Tensor) -> Tensor:
    """Sum the attention that every slot receives from the counted queries, float32 [B, N, S]."""
    counted_BT = counted_BT.to(call.key.device)
    rows, heads, slots = call.key.shape[:3]
    sums_BHGS = torch.zeros(
        rows, heads, call.query.shape[1] // heads, slots, device=call.key.device
    )
    columns = counted_BT.any(0).nonzero()[:, 0].tolist()
    counted = range(columns[0], columns[-1] + 1) if columns else range(0)
    for begin in counted[::MAX_QUERIES_PER_BLOCK]:
        end = min(begin + MAX_QUERIES_PER_BLOCK, counted.stop)
        for part, weights in attention_weights(_drop_later(call, end), range(begin, end)):
            counted_B111T = counted_BT[:, None, None, None, part].float()
            sums_BHGS[..., : weights.shape[-1]] += (counted_B111T @ weights)[..., 0, :]
    return sums_BHGS.flatten(1, 2)


def _drop_later(call: AttentionCall, end: int) -> AttentionCall:
    """Return a call without the queries from `end` on, and without the slots of these tokens."""
    later = call.query.shape[2] - end
    if call.mask is not None or not later:
        return call
    return replace(call, query=call.query[:, :, :end], key=call.key[:, :, :-later])


def attention_weights(
    call: AttentionCall, tokens: range, slots: Tensor | slice = slice(None)
) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of queries, and their attention weights over `slots`, float32 [B, H, G, T, S]."""
    heads = call.key.shape[1]
    key_BHDS = call.key[:, :, slots].transpose(-1, -2)
    query_BHGTD = group_heads(call.query, heads, 1)
    for begin in tokens[::MAX_QUERIES_PER_BLOCK]:
        part = slice(begin, min(begin + MAX_QUERIES_PER_BLOCK, tokens.stop))
        scores = query_BHGTD[:, :, :, part].flatten(2, 3) @ key_BHDS
        scores = scores.unflatten(2, (-1, part.stop - begin)).float().mul_(call.scaling)  # type: ignore[no-untyped-call]
        if call.bias is not None:  # per key/value head or per query head
            bias_BMS = pad_bias(call.bias.float(), call.key.shape[2])[..., slots]
            # the heads of latents share one bias
            bias_BMS = bias_BMS.expand(-1, max(heads, bias_BMS.shape[1]), -1)
            scores = scores + group_heads(bias_BMS, heads, 1)[:, :, :, None]
        hidden_BH1TS = ~visible_slots(call, part)[..., slots][:, :, None]
        yield part, scores.masked_fill_(hidden_BH1TS, torch.finfo(torch.float32).min).softmax(-1)


def visible_slots(call: AttentionCall, part: slice) -> Tensor:
    """Return the mask of slots that these queries see, bool [B or 1, 1 or H, T, S]."""
    if call.mask is not None:
        return call.mask[:, :, part]
    tokens, slots = call.query.shape[2], call.key.shape[2]
    query_T1 = torch.arange(slots - tokens, slots, device=call.key.device)[part, None]
    return (torch.arange(slots, device=call.key.device) <= query_T1)[None, None]


def group_heads(scores: Tensor, heads: int, dim: int = 0) -> Tensor:
    """Split query heads into key/value heads and groups: [..., N, ...] to [..., H, G, ...]."""
    return scores.unflatten(dim, (heads, -1))  # type: ignore[no-untyped-call]


@contextmanager
def map_inputs(lm: LM, compute: Callable[[int, Tensor], Tensor]) -> Iterator[list[list[Tensor]]]:
    """Apply a function to the input [B, T, C] of the attention of every layer while a text is read.

    Yields the results by layer (see `AttentionCall.layer`), one per forward pass.
    """
    inputs: dict[nn.Module | None, Tensor] = {}
    results: list[list[Tensor]] = [[] for _ in lm.kv_layers]

    def store_input(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        inputs[module] = args[0] if args else options["hidden_states"]

    def observe(call: AttentionCall) -> None:
        if not call.is_sharing:
            results[call.layer].append(compute(call.layer, inputs[call.module]))

    with ExitStack() as hooks, observe_attention(observe):
        for module in lm.model.modules():
            if hasattr(module, "layer_idx"):
                hooks.enter_context(module.register_forward_pre_hook(store_input, with_kwargs=True))
        yield results
