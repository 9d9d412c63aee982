"""Quantised states: keys and values as packed integers of 2, 4 or 8 bits (`--bits`).

KIVI (Liu et al., arXiv 2402.02750, section 3.2): a channel of keys shares scale and offset over a
group of tokens, a token of values over its channels. The first slot and the last, incomplete group
of a head keep the number format of the model, or bfloat16 for a float32 model. A head of a ragged
cache has no incomplete group: its last one is shorter.

Methods read and answer with the numbers that the integers stand for. There are no kernels that
compute with integers, so `--bits` saves memory of states, not time.

Shape letters: N sequences of slots (layer, row and head) · S slots of all sequences · D head size ·
    G groups · Q quantised slots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Chunk, Query
from ttabench.cost import GROUP_SLOTS
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Method

KV_NAMES = re.compile(r"(?:^|(?<=\.))(keys|values)(?:\.\d+)?$")
"""Names of state tensors with keys or values, [.., P, D], or [S, D] of a `RaggedCache`."""
LAYOUT = "layout"
"""Part of a packed tensor, int64: bits, then the shape."""


class QuantisedStates(Method[Any]):
    """Mix-in for a method class: its states are packed, and unpacked when they are used."""

    bits: int

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Adapt the unpacked state, and pack the result."""
        return pack_state(super().adapt(self._unpacked(state), chunks), self.bits, self._half)

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Build the patch from the unpacked state."""
        return super().patch(self._unpacked(state), queries)

    def combine_states(self, state: State, other: State) -> State:
        """Merge the unpacked states, and pack the result."""
        merged = super().combine_states(self._unpacked(state), self._unpacked(other))
        return pack_state(merged, self.bits, self._half)

    def _unpacked(self, state: State) -> State:
        return unpack_state(state, self.lm.dtype)

    @property
    def _half(self) -> torch.dtype:
        return self.lm.dtype if self.lm.dtype.itemsize == 2 else torch.bfloat16


def quantise_states(method: Method[Any], bits: int) -> Method[Any]:
    """Make a method pack the keys and values of its states, of one sequence each.

    In a batch, the padding of shorter sequences would share the scales of their groups.
    """
    cls, method.supports_batching = type(method), False
    members = {"bits": bits, "__module__": cls.__module__}
    method.__class__ = type(cls.__name__, (QuantisedStates, cls), members)
    return method


def pack_state(state: State, bits: int, exact: torch.dtype) -> State:
    """Return the state with packed keys and values.

    Args:
        exact: number format of slots that are not quantised.

    Raises:
        UserError: a state that is not empty has no keys and values.
    """
    packed: dict[str, Tensor] = {}
    for name, tensor in state.tensors.items():
        match = KV_NAMES.search(name)
        if match is None:
            packed[name] = tensor
            continue
        lengths_N = _sequence_lengths(tensor.shape, state.tensors.get(_counts_name(name)))
        parts = _pack(tensor, lengths_N, bits, exact, by_channel=match[1] == "keys")
        packed |= {f"{name}.{part}": value for part, value in parts.items()}
    if state.tensors and packed.keys() == state.tensors.keys():
        fault = "--bits quantises keys and values, and the state has none."
        raise UserError(fault, "Remove --bits, or use a method with a KV cache such as kvzip.")
    return replace(state, tensors=packed)


def unpack_state(state: State, dtype: torch.dtype) -> State:
    """Return the state with keys and values of this number format. Others stay as they are."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.tensors.items():
        whole, _, part = name.rpartition(".")
        if part == LAYOUT:
            is_keys = KV_NAMES.search(whole)[1] == "keys"  # type: ignore[index]
            parts = {
                key: state.tensors[f"{whole}.{key}"] for key in ("codes", "scale", "low", "exact")
            }
            bits, *shape = tensor.tolist()
            lengths_N = _sequence_lengths(shape, state.tensors.get(_counts_name(whole)))
            found_SD = _unpack(parts, lengths_N, (bits, *shape), by_channel=is_keys)
            tensors[whole] = found_SD.to(dtype).view(shape)
        elif f"{whole}.{LAYOUT}" not in state.tensors:
            tensors[name] = tensor
    return replace(state, tensors=tensors)


def _counts_name(name: str) -> str:
    """Return the name of the slot counts of a ragged cache."""
    return KV_NAMES.sub("counts", name)


def _sequence_lengths(shape: Sequence[int], counts: Tensor | None) -> Tensor:
    """Return the slots of every sequence, int64 [N]."""
    if len(shape) == 2:
        assert counts is not None, "a flat cache has counts"
        return counts.flatten().long()
    *leading, slots, _ = shape
    return torch.full((math.prod(leading),), slots)


def _places(lengths_N: Tensor, *, is_ragged: bool) -> tuple[Tensor, Tensor]:
    """Return a mask of slots that are not quantised [S], and the groups of the others, int64 [Q]."""
    starts_N = lengths_N.cumsum(0) - lengths_N
    place_S = torch.arange(int(lengths_N.sum()), device=lengths_N.device)
    place_S = place_S - starts_N.repeat_interleave(lengths_N)
    is_exact_S = place_S < 1
    quantised_N = (lengths_N - 1).clamp(min=0)
    if not is_ragged:
        quantised_N = quantised_N // GROUP_SLOTS * GROUP_SLOTS
        is_exact_S |= place_S > quantised_N.repeat_interleave(lengths_N)
    groups_N = -(-quantised_N // GROUP_SLOTS)
    first_group_N = groups_N.cumsum(0) - groups_N
    group_S = first_group_N.repeat_interleave(lengths_N) + (place_S - 1) // GROUP_SLOTS
    return is_exact_S, group_S[~is_exact_S]


def _pack(
    tensor: Tensor, lengths_N: Tensor, bits: int, exact: torch.dtype, *, by_channel: bool
) -> dict[str, Tensor]:
    x_SD = tensor.reshape(-1, tensor.shape[-1]).float()
    is_exact_S, group_Q = _places(lengths_N.to(x_SD.device), is_ragged=tensor.dim() == 2)
    x_QD = x_SD[~is_exact_S]
    if by_channel:
        index_QD = group_Q[:, None].expand_as(x_QD)
        groups = int(group_Q.max()) + 1 if len(group_Q) else 0
        low = x_QD.new_zeros(groups, x_QD.shape[1])
        high = low.scatter_reduce(0, index_QD, x_QD, "amax", include_self=False)
        low = low.scatter_reduce(0, index_QD, x_QD, "amin", include_self=False)
    else:
        low, high = x_QD.aminmax(dim=1, keepdim=True) if x_QD.numel() else (x_QD[:, :1],) * 2
    most = 2**bits - 1
    low, scale = low.half(), ((high - low) / most).clamp(min=2**-24).half()
    rows = group_Q if by_channel else slice(None)
    codes_QD = ((x_QD - low[rows]) / scale[rows].float()).round_().clamp_(0, most).to(torch.uint8)
    per_byte = 8 // bits
    codes_QD = torch.nn.functional.pad(codes_QD, (0, -codes_QD.shape[1] % per_byte))
    codes = codes_QD.view(len(codes_QD), codes_QD.shape[1] // per_byte, per_byte)
    packed = sum(codes[..., place] << (bits * place) for place in range(per_byte))
    assert isinstance(packed, Tensor)
    layout = torch.tensor([bits, *tensor.shape], device=tensor.device)
    return {
        "codes": packed,
        "scale": scale,
        "low": low,
        "exact": x_SD[is_exact_S].to(exact),
        LAYOUT: layout,
    }


def _unpack(
    parts: Mapping[str, Tensor], lengths_N: Tensor, layout: Sequence[int], *, by_channel: bool
) -> Tensor:
    codes, scale, low, exact = parts["codes"], parts["scale"], parts["low"], parts["exact"]
    bits, *shape = layout
    is_exact_S, group_Q = _places(lengths_N.to(codes.device), is_ragged=len(shape) == 2)
    places = [(codes >> (bits * place)) & (2**bits - 1) for place in range(8 // bits)]
    x_QD = torch.stack(places, dim=-1).flatten(1)[:, : shape[-1]].float()
    rows = group_Q if by_channel else slice(None)
    x_SD = exact.new_empty(len(is_exact_S), shape[-1], dtype=torch.float32)
    x_SD[~is_exact_S] = x_QD * scale[rows].float() + low[rows].float()
    x_SD[is_exact_S] = exact.float()
    return x_SD
