"""Memory of a method (`State`) and changes to the frozen language model (`Patch`).

Shape letters used in tensor names throughout the package:
    B batch rows · P prefix positions · T tokens · H key/value heads · D head size ·
    L layers · R rank · I/O features in and out
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Json

if TYPE_CHECKING:
    from ttabench.lm.attention import AttentionCall


@dataclass(frozen=True)
class State:
    """Immutable memory of a method: `adapt` returns a new one.

    Everything kept between `adapt` and `patch` is a tensor here, so `nbytes` is the memory cost.
    """

    rows: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Json] = field(default_factory=dict)
    """JSON values: document keys, tokens read, truncation, seeds of stochastic rules."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def select_tensor_rows(tensor: Tensor, rows_N: Tensor) -> Tensor:
    """Select rows of a tensor. A single shared row is returned unchanged."""
    return tensor if len(tensor) == 1 else tensor.index_select(0, rows_N.to(tensor.device))


@dataclass(frozen=True)
class Prefix:
    """Keys and values before the text in every layer, as in a KV cache."""

    keys_LBHPD: tuple[Tensor, ...]
    """One tensor [B, H, P, D] per layer; B is 1 if shared. Keys are used as is, never rotated."""
    values_LBHPD: tuple[Tensor, ...]
    next_position_B: Tensor
    """int64 [B]: position id of the first text token."""
    mask_BP: Tensor | None = None
    """bool [B, P], False for padding; None without padding."""
    holds_bos: bool = False
    """True if the prefix was read from text that starts with BOS (set by `patching`)."""
    eviction: Eviction | None = None
    """Eviction policy applied while decoding on top of this prefix (H2O). None keeps every slot."""
    bias_LBHP: tuple[Tensor, ...] | None = None
    """Addition to the attention scores: one float [B, H, P] per layer, or [B, N, P] by query head.

    Natural log: log 2 counts a slot twice, -inf hides it. None for no bias. Differentiable."""
    positions_LBHP: tuple[Tensor, ...] | None = None
    """Positions of slots, int [B or 1, H or 1, P], one tensor per layer or one for all layers.

    None: consecutive, up to the text. Sliding windows of the model depend on them."""
    model_cache: Mapping[str, Tensor] = field(default_factory=dict)
    """What the model's own cache holds besides these keys and values, see `lm.forward.model_cache`:
    recurrent and convolution states [B, ...]; all of the cache for a model without such keys."""

    @property
    def slots(self) -> int:
        """Slots of a row, padding included; tokens read if only `model_cache` holds them."""
        if self.keys_LBHPD:
            return int(self.keys_LBHPD[0].shape[2])
        return int(self.next_position_B.max()) if self.model_cache else 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, without slots hidden by the bias, and of the model's cache."""
        sizes = [
            keys.nbytes + values.nbytes
            for keys, values in zip(self.keys_LBHPD, self.values_LBHPD, strict=True)
        ]
        if self.bias_LBHP is not None:
            biases = zip(sizes, self.bias_LBHP, strict=True)
            sizes = [size * int((~bias.isneginf()).sum()) // bias.numel() for size, bias in biases]
        return sum(sizes) + sum(tensor.nbytes for tensor in self.model_cache.values())

    def select(self, rows_N: Tensor) -> Prefix:
        """Select batch rows. Shared tensors stay shared."""
        eviction = self.eviction
        if eviction is not None:
            eviction = eviction.select(rows_N.to(self.next_position_B.device))
        return replace(
            self.map_layers(lambda layer: select_tensor_rows(layer, rows_N)),
            next_position_B=select_tensor_rows(self.next_position_B, rows_N),
            mask_BP=None if self.mask_BP is None else select_tensor_rows(self.mask_BP, rows_N),
            eviction=eviction,
            model_cache={
                path: select_tensor_rows(tensor, rows_N)
                for path, tensor in self.model_cache.items()
            },
        )

    def map_layers(self, change: Callable[[Tensor], Tensor]) -> Prefix:
        """Apply a function to every per-layer tensor."""
        names = ("keys_LBHPD", "values_LBHPD", "bias_LBHP", "positions_LBHP")
        layers_by_name = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {
            name: tuple(map(change, layers)) if layers else layers
            for name, layers in layers_by_name.items()
        }
        return replace(self, **changed)

    def positions(self) -> tuple[Tensor, ...]:
        """Return the positions of slots, see `positions_LBHP`; -1 for padding."""
        known = self.positions_LBHP or self._consecutive_positions()
        return (
            known
            if self.mask_BP is None
            else tuple(p.masked_fill(~self.mask_BP[:, None], -1) for p in known)
        )

    def _consecutive_positions(self) -> tuple[Tensor, ...]:
        """Return consecutive positions of unpadded slots up to the text, [B or 1, 1, P]."""
        device = self.next_position_B.device
        real_BP = (
            torch.ones(1, self.slots, dtype=torch.bool, device=device)
            if self.mask_BP is None
            else self.mask_BP
        )
        from_end_BP = real_BP.long().flip(1).cumsum(1).flip(1)
        return ((self.next_position_B[:, None] - from_end_BP.to(device))[:, None],)


class Eviction(Protocol):
    """Eviction policy of a prefix: removes slots while text is read on top."""

    def step(self, mask_BT: Tensor) -> EvictionStep:
        """Start observing the next tokens. `mask_BT` is False for padding."""
        ...

    def select(self, rows_N: Tensor) -> Eviction:
        """Select batch rows. A shared row may be selected by any index."""
        ...


class EvictionStep(Protocol):
    """One forward pass under an `Eviction`."""

    def __call__(self, call: AttentionCall) -> None:
        """Observe the attention of one layer."""
        ...

    def remaining_prefix(self, whole: Prefix, *, evict: bool) -> Prefix:
        """Return the prefix, extended by the tokens just read, after eviction.

        With `evict=False`, all slots are kept for now.
        """
        ...


@dataclass(frozen=True)
class LowRank:
    """Weight delta of one linear layer: y += (x @ a^T) @ b^T."""

    a_BRI: Tensor
    """[B, R, in]; B may be 1. The head and tied embeddings allow only B = 1."""
    b_BOR: Tensor
    """[B, out, R]; B may be 1. Includes any scale."""
    dropout: Callable[[Tensor, Tensor], Tensor] | None = None
    """Training only: function of x [B, T, in] and a that replaces x @ a^T by dropout(x) @ a^T."""


@dataclass(frozen=True)
class Dense:
    """Delta that is added to a parameter."""

    delta: Tensor
    """[1, *shape of the parameter], shared by all rows."""


Delta: TypeAlias = LowRank | Dense


@dataclass(frozen=True)
class Patch:
    """Changes to the frozen LM for a query. Each part has 1 row (shared) or the batch size.

    Tokens are read with the adapted weights. Order in the window: prefix, tokens, text.
    """

    tokens_BT: Tensor | None = None
    """int64 [B, T]: token ids in the window, without BOS, right-padded."""
    tokens_mask_BT: Tensor | None = None
    prefix: Prefix | None = None
    deltas: Mapping[str, Delta] = field(default_factory=dict)
    """Deltas by module name (`LowRank`) or parameter name (`Dense`)."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        total = sum(part.nbytes for part in (self.prefix, self.tokens_BT) if part is not None)
        for delta in self.deltas.values():
            total += (
                delta.a_BRI.nbytes + delta.b_BOR.nbytes
                if isinstance(delta, LowRank)
                else delta.delta.nbytes
            )
        return total

    def __add__(self, other: Patch) -> Patch:
        """Combine two patches: tokens are concatenated, deltas of one weight are added."""
        assert self.prefix is None or other.prefix is None, "only one patch may have a prefix"
        deltas = dict(self.deltas)
        for name, delta in other.deltas.items():
            deltas[name] = _add_deltas(deltas[name], delta) if name in deltas else delta
        tokens_BT, mask_BT = _concatenate_tokens(self, other)
        return Patch(
            tokens_BT, mask_BT, other.prefix if self.prefix is None else self.prefix, deltas
        )


def _add_deltas(first: Delta, second: Delta) -> Delta:
    if isinstance(first, LowRank) and isinstance(second, LowRank):
        assert first.dropout is None, "deltas with dropout cannot be merged"
        assert second.dropout is None, "deltas with dropout cannot be merged"
        return LowRank(
            _concatenate_broadcast(first.a_BRI, second.a_BRI, 1),
            _concatenate_broadcast(first.b_BOR, second.b_BOR, 2),
        )
    assert isinstance(first, Dense) and isinstance(second, Dense), (  # noqa: PT018
        "names of maps and of parameters differ"
    )
    return Dense(first.delta + second.delta)


def _concatenate_tokens(first: Patch, second: Patch) -> tuple[Tensor | None, Tensor | None]:
    """Concatenate the tokens of two patches and their masks. Padding may lie between them."""
    pairs = [
        (part.tokens_BT, part.tokens_mask_BT)
        for part in (first, second)
        if part.tokens_BT is not None
    ]
    if len(pairs) < 2:
        return pairs[0] if pairs else (None, None)
    tokens_BT = _concatenate_broadcast(pairs[0][0], pairs[1][0], 1)
    if pairs[0][1] is None and pairs[1][1] is None:
        return tokens_BT, None
    kept = [
        torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        for ids, mask in pairs
    ]
    return tokens_BT, _concatenate_broadcast(kept[0], kept[1], 1)


def _concatenate_broadcast(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Concatenate along `dim`; a single row is broadcast."""
    rows = max(len(first), len(second))
    return torch.cat(
        [first.expand(rows, *first.shape[1:]), second.expand(rows, *second.shape[1:])], dim
    )


BOOSTED_LAYER_FRACTION = 0.25
"""Share of layers that `boost_deltas` scales."""


def boost_deltas(patch: Patch, factor: float) -> Patch:
    """Scale the low-rank deltas in the quarter of layers where they are largest.

    "Selective layer boosting", arXiv 2604.23750, with a factor of 1.75 there. The size of a layer
    is the Frobenius norm of all its deltas, row by row. Deltas outside numbered layers stay.
    Raises a UserError without low-rank deltas.
    """
    by_layer: dict[str, list[str]] = {}
    for name, delta in patch.deltas.items():
        if isinstance(delta, LowRank) and (number := re.search(r"\.(\d+)\.", name)):
            by_layer.setdefault(number[1], []).append(name)
    if not by_layer:
        fault = "--boost needs low-rank weight deltas, and the state has none."
        hint = "Remove --boost, or use a method with deltas (generative_adapter, templora, ...)."
        raise UserError(fault, hint)
    deltas: dict[str, Any] = dict(patch.deltas)
    squared = {name: _squared_norm(deltas[name]) for names in by_layer.values() for name in names}
    rows = max(map(len, squared.values()))
    of_layers = ([squared[name].expand(rows) for name in names] for names in by_layer.values())
    norms_LB = torch.stack([torch.stack(own).sum(0) for own in of_layers])
    most = max(1, round(BOOSTED_LAYER_FRACTION * len(norms_LB)))
    largest_LB = torch.zeros_like(norms_LB).scatter(0, norms_LB.topk(most, 0).indices, 1.0).bool()
    for names, largest_B in zip(by_layer.values(), largest_LB, strict=True):
        for name in names:
            b_BOR = deltas[name].b_BOR
            factor_B11 = torch.where(largest_B, factor, 1.0).to(b_BOR)[:, None, None]
            deltas[name] = replace(deltas[name], b_BOR=b_BOR * factor_B11)
    return replace(patch, deltas=deltas)


def _squared_norm(delta: LowRank) -> Tensor:
    """The squared Frobenius norm of a delta [B], of a product that is never made."""
    return ((delta.a_BRI @ delta.a_BRI.mT) * (delta.b_BOR.mT @ delta.b_BOR)).sum((1, 2)).cpu()
