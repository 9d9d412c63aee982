"""What a method remembers (`State`), and all that it may do to the frozen language model (`Patch`).

Shape letters used in tensor names throughout the package:
    B batch rows · P prefix positions · T tokens · H key/value heads · D head size · L layers · R rank ·
    I/O features in and out
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
    """What a method remembers, as a value: `adapt` returns a new one and leaves the old one as it was.

    Everything that lives in memory between `adapt` and `patch` is a tensor here, so `nbytes` is what it costs to keep.
    """

    rows: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Json] = field(default_factory=dict)
    """JSON values only: document keys, tokens read, truncation, seeds of stochastic rules."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def select_tensor_rows(tensor: Tensor, rows_N: Tensor) -> Tensor:
    """These rows of a tensor, in this order; one row serves any number, and stays one."""
    return tensor if len(tensor) == 1 else tensor.index_select(0, rows_N.to(tensor.device))


@dataclass(frozen=True)
class Prefix:
    """Keys and values put in front of the text in every layer, as a cache would hold them."""

    keys_LBHPD: tuple[Tensor, ...]
    """One tensor [B, H, P, D] a layer; B is 1 for a prefix all rows share. Keys are used as they are, never rotated."""
    values_LBHPD: tuple[Tensor, ...]
    next_position_B: Tensor
    """int64 [B]: position id of the first text token after the prefix."""
    mask_BP: Tensor | None = None
    """bool [B, P], false where a slot is padding; None when every slot counts."""
    holds_bos: bool = False
    """True when the prefix was made by reading text that starts with the BOS token (set by `patching`)."""
    eviction: Eviction | None = None
    """Which slots go as text is read on top (H2O); None: all stay."""
    bias_LBHP: tuple[Tensor, ...] | None = None
    """One float [B, H, P] a layer, or [B, N, P] of query heads: added to attention scores (natural log: log 2 counts a
    slot twice, -inf hides it); None for nothing. Differentiable."""
    positions_LBHP: tuple[Tensor, ...] | None = None
    """Where slots stand in the text, int [B or 1, H or 1, P], one a layer or one for all; None: one behind the other,
    up to the text. What a sliding window of the model sees depends on them."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, of slots that heads see."""
        sizes = [
            keys.nbytes + values.nbytes
            for keys, values in zip(self.keys_LBHPD, self.values_LBHPD, strict=True)
        ]
        if self.bias_LBHP is None:
            return sum(sizes)
        biases = zip(sizes, self.bias_LBHP, strict=True)
        return sum(size * int((~bias.isneginf()).sum()) // bias.numel() for size, bias in biases)

    def take(self, slots_P: Tensor) -> Prefix:
        """Only these slots of every layer and head, int64 [P], in this order; text goes on where it would have."""
        assert self.eviction is None, "what evicts decides itself which slots stay"
        placed = replace(self, positions_LBHP=self.positions_LBHP or self._consecutive_positions())
        mask_BP = None if self.mask_BP is None else self.mask_BP.index_select(1, slots_P)
        return replace(
            placed.map_layers(lambda layer: layer.index_select(2, slots_P)), mask_BP=mask_BP
        )

    def select(self, rows_N: Tensor) -> Prefix:
        """That of these rows, in this order; parts of one row stay as they are."""
        eviction = self.eviction
        if eviction is not None and len(self.next_position_B) > 1:
            eviction = eviction.select(rows_N.to(self.next_position_B.device))
        return replace(
            self.map_layers(lambda layer: select_tensor_rows(layer, rows_N)),
            next_position_B=select_tensor_rows(self.next_position_B, rows_N),
            mask_BP=None if self.mask_BP is None else select_tensor_rows(self.mask_BP, rows_N),
            eviction=eviction,
        )

    def map_layers(self, change: Callable[[Tensor], Tensor]) -> Prefix:
        """The prefix with every tensor of a layer changed."""
        names = ("keys_LBHPD", "values_LBHPD", "bias_LBHP", "positions_LBHP")
        held = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {
            name: layers and tuple(map(change, layers)) for name, layers in held.items()
        }
        return replace(self, **changed)

    def positions(self) -> tuple[Tensor, ...]:
        """Where slots stand, see `positions_LBHP`; -1 where they are padding."""
        known = self.positions_LBHP or self._consecutive_positions()
        return (
            known
            if self.mask_BP is None
            else tuple(p.masked_fill(~self.mask_BP[:, None], -1) for p in known)
        )

    def _consecutive_positions(self) -> tuple[Tensor, ...]:
        """[B or 1, 1, P] for all layers: slots that are no padding stand one behind the other, up to the text."""
        slots, device = (
            self.keys_LBHPD[0].shape[2] if self.keys_LBHPD else 0,
            self.next_position_B.device,
        )
        real_BP = (
            torch.ones(1, slots, dtype=torch.bool, device=device)
            if self.mask_BP is None
            else self.mask_BP
        )
        from_end_BP = real_BP.long().flip(1).cumsum(1).flip(1)
        return ((self.next_position_B[:, None] - from_end_BP.to(device))[:, None],)


class Eviction(Protocol):
    """What a prefix forgets while text is read on top of it: a value that goes where the prefix goes."""

    def step(self, mask_BT: Tensor) -> EvictionStep:
        """Watch the next tokens being read, of as many rows as this has; false where a row is padded."""
        ...

    def select(self, rows_N: Tensor) -> Eviction:
        """That of these rows, in this order; one row serves any number."""
        ...


class EvictionStep(Protocol):
    """One reading under an `Eviction`."""

    def __call__(self, call: AttentionCall) -> None:
        """Sees the attention of one layer."""
        ...

    def remaining_prefix(self, whole: Prefix, *, evict: bool) -> Prefix:
        """What is left of the prefix with the tokens just read behind it, with its eviction; all of it for now if not
        `evict`."""
        ...


@dataclass(frozen=True)
class LowRank:
    """A weight delta of one linear layer: y += (x @ a^T) @ b^T."""

    a_BRI: Tensor
    """[B, R, in]; B may be 1. Several rows: not of the head, nor of an embedding tied to it."""
    b_BOR: Tensor
    """[B, out, R]; B may be 1. Any scale is already inside."""
    dropout: Callable[[Tensor, Tensor], Tensor] | None = None
    """dropout(x) @ a^T from x [B, T, in] and a, in place of x @ a^T: while they are trained, never in use."""


@dataclass(frozen=True)
class Dense:
    """A delta of any parameter, added to it."""

    delta: Tensor
    """[1, *shape of the parameter]: the same for all rows."""


Delta: TypeAlias = LowRank | Dense


@dataclass(frozen=True)
class Patch:
    """All that adaptation may do to the frozen LM. The parts combine; their rows are 1 (shared) or the batch size.

    With deltas and tokens together, tokens are read by the *adapted* weights. In the window: prefix, tokens, text.
    """

    tokens_BT: Tensor | None = None
    """int64 [B, T]: token ids kept in the window (no BOS), right-padded."""
    tokens_mask_BT: Tensor | None = None
    prefix: Prefix | None = None
    deltas: Mapping[str, Delta] = field(default_factory=dict)
    """Keyed by module name for `LowRank` ("model.layers.0.mlp.up_proj"), by parameter name for `Dense`."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything in the patch."""
        total = sum(part.nbytes for part in (self.prefix, self.tokens_BT) if part is not None)
        for delta in self.deltas.values():
            total += (
                delta.a_BRI.nbytes + delta.b_BOR.nbytes
                if isinstance(delta, LowRank)
                else delta.delta.nbytes
            )
        return total

    def __add__(self, other: Patch) -> Patch:
        """Both at once: the tokens of `other` stand behind those of this one, deltas of one weight add up."""
        assert self.prefix is None or other.prefix is None, "two prefixes have no order"
        deltas = dict(self.deltas)
        for name, delta in other.deltas.items():
            deltas[name] = _add_deltas(deltas[name], delta) if name in deltas else delta
        tokens_BT, mask_BT = _concatenate_tokens(self, other)
        return Patch(
            tokens_BT, mask_BT, other.prefix if self.prefix is None else self.prefix, deltas
        )


def _add_deltas(first: Delta, second: Delta) -> Delta:
    if isinstance(first, LowRank) and isinstance(second, LowRank):
        assert first.dropout is None is second.dropout, "what is being trained is not merged"
        return LowRank(
            _concatenate_broadcast(first.a_BRI, second.a_BRI, 1),
            _concatenate_broadcast(first.b_BOR, second.b_BOR, 2),
        )
    assert isinstance(first, Dense) and isinstance(second, Dense), (  # noqa: PT018
        "names of maps and of parameters differ"
    )
    return Dense(first.delta + second.delta)


def _concatenate_tokens(first: Patch, second: Patch) -> tuple[Tensor | None, Tensor | None]:
    """Tokens of both, and their mask where a row is padded; padding may stand between them."""
    pairs = [
        (part.tokens_BT, part.tokens_mask_BT)
        for part in (first, second)
        if part.tokens_BT is not None
    ]
    if len(pairs) < 2:
        return pairs[0] if pairs else (None, None)
    tokens_BT = _concatenate_broadcast(pairs[0][0], pairs[1][0], 1)
    if pairs[0][1] is pairs[1][1] is None:
        return tokens_BT, None
    kept = [
        torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        for ids, mask in pairs
    ]
    return tokens_BT, _concatenate_broadcast(kept[0], kept[1], 1)


def _concatenate_broadcast(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Side by side, where one row serves any number of rows."""
    rows = max(len(first), len(second))
    return torch.cat(
        [first.expand(rows, *first.shape[1:]), second.expand(rows, *second.shape[1:])], dim
    )


BOOSTED_LAYER_FRACTION = 0.25
"""Share of layers that `boosted` takes."""


def boost_deltas(patch: Patch, factor: float) -> Patch:
    """The patch with low-rank deltas multiplied in the quarter of layers where they are largest (Frobenius norm of all
    of a layer's together, row by row): "selective layer boosting", arXiv 2604.23750, there by 1.75. A UserError where
    it has no low-rank delta; deltas outside numbered layers stay as they are."""
    by_layer: dict[str, list[str]] = {}
    for name, delta in patch.deltas.items():
        if isinstance(delta, LowRank) and (number := re.search(r"\.(\d+)\.", name)):
            by_layer.setdefault(number[1], []).append(name)
    if not by_layer:
        fault = "--boost multiplies low-rank weight deltas, and there are none to answer under."
        raise UserError(
            fault,
            "Leave it out, or use a method that leaves deltas (generative_adapter, templora, ...).",
        )
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
