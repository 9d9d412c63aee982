"""How a window attends, chosen once from the base model, the prefix and the rows that are fed.

What a prefix needs (one for several rows, slots that single heads miss or weigh otherwise) is met by
`attention.interface`, which transformers calls.

Shape letters: B rows · H key/value heads · N query heads · P slots · D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.lm.attention.interface import Shared, is_watched
from ttabench.lm.forward.ways import refusal, ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """How the layers of a window attend."""

    shared: tuple[Shared, ...] | None = None
    """Keys and values that all rows see and none holds, one entry a layer, with what is added to their scores."""
    bias: tuple[Tensor, ...] | None = None
    """What is added to the scores of the prefix's slots where each row holds them: a finite float [B or 1, H or N, P]
    a layer."""
    parts: bool = False
    """Whether a text that is read on may be attended to in two parts, where nothing is padded (`Extras.reads_on`)."""

    def of_rows(self, rows_N: Tensor) -> AttentionPlan:
        """For these rows of the window, in this order."""
        if self.bias is None or len(self.bias[0]) == 1:
            return self
        return replace(self, bias=tuple(bias.index_select(0, rows_N) for bias in self.bias))

    def masked(self) -> AttentionPlan:
        """Where a mask says of shared slots, too, who sees them."""
        if self.shared is None:
            return self
        return replace(self, shared=tuple(replace(tensor, all_seen=False) for tensor in self.shared))


def plan_for(lm: LM, prefix: Prefix | None, rows: int) -> AttentionPlan:
    """The plan of a window of so many rows behind a prefix.

    One prefix for several rows stays one, unless every row evicts slots of its own, somebody watches, or the attention
    is not ours.
    """
    ways = ways_of(lm)
    ours = ways.attention == "sdpa"
    if prefix is not None and not ways.caches:
        raise refusal(lm, "cache")
    bias = None if prefix is None else _finite_bias(lm, prefix)
    if not ways.hooked and (bias is not None or is_watched() or (prefix is not None and prefix.eviction is not None)):
        raise refusal(lm, "hooks")
    shared = None
    apart = prefix is not None and any(place.shape[1] > 1 for place in prefix.positions_LBHP or ())
    lends = ways.lends and not (ways.local and apart)  # where heads kept slots of their own, each has its own window
    if ours and lends and prefix is not None and _is_lent(prefix, rows):
        added: Sequence[Tensor | None] = [None] * lm.layers if bias is None else bias
        layers = enumerate(zip(pairs_of(lm, prefix), added, strict=True))
        seen = [prefix.mask_BP is None and layer not in ways.local for layer in range(lm.layers)]
        shared = tuple(Shared(keys, values, seen[layer], more) for layer, ((keys, values), more) in layers)
    return AttentionPlan(
        shared=shared,
        bias=None if shared else bias,
        parts=ours and shared is None,
    )


def pairs_of(lm: LM, prefix: Prefix) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of a prefix layer by layer, where each layer is and in the model's number format."""
    held = list(zip(prefix.keys_LBHPD, prefix.values_LBHPD, strict=True))
    assert len(held) in (0, lm.layers), f"prefix of {len(held)} layers on a model of {lm.layers}"
    places = zip(held, lm.layer_devices, strict=False)
    return [(keys.to(device, lm.dtype), values.to(device, lm.dtype)) for (keys, values), device in places]


def _is_lent(prefix: Prefix, rows: int) -> bool:
    if not prefix.keys_LBHPD or rows == 1 or prefix.keys_LBHPD[0].shape[0] > 1:
        return False
    parts = [part[0] for part in (prefix.hidden_LBHP, prefix.bias_LBHP) if part]
    return prefix.eviction is None and not is_watched() and all(len(part) == 1 for part in parts)


def _finite_bias(lm: LM, prefix: Prefix) -> tuple[Tensor, ...] | None:
    """The bias of a prefix on scores of its slots, hidden ones too, in the model's numbers; None for none."""
    if (prefix.hidden_LBHP is None and prefix.bias_LBHP is None) or not prefix.keys_LBHPD[0].shape[2]:
        return None
    lowest = torch.finfo(lm.dtype).min
    biases = []
    for layer, device in enumerate(lm.layer_devices):
        bias = None if prefix.bias_LBHP is None else prefix.bias_LBHP[layer].to(device, lm.dtype).clamp(min=lowest)
        if prefix.hidden_LBHP is not None:
            hidden = prefix.hidden_LBHP[layer].to(device)
            if bias is None:
                bias = torch.zeros(1, 1, 1, dtype=lm.dtype, device=device)
            elif bias.shape[1] > hidden.shape[1]:  # of query heads
                hidden = hidden.repeat_interleave(bias.shape[1] // hidden.shape[1], dim=1)
            bias = torch.where(hidden, lowest, bias)
        assert bias is not None
        biases.append(bias)
    return tuple(biases)
