"""What a piece of work does to the machine: operations, and the largest set of tensors.

A multiply and an add are two operations; causal attention counts as half, and back with five products for two.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is not typed there
    """Counts until it is left.

    Attributes:
        flops: floating-point operations of matrix products and attention.
        peak_tensor_bytes: the most that tensors made inside held at a time; those of the model are not among them, nor
            is what kernels allocate for themselves.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.peak_tensor_bytes = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and note it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.flops += operations(func, args, kwargs, out)
        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:  # else a view of what was there, or the same tensor changed in place
                self._follow(storage)
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if storage._cdata in self._held or not size:
            return
        self._held[storage._cdata] = size
        self.peak_tensor_bytes = max(self.peak_tensor_bytes, sum(self._held.values()))
        weakref.finalize(storage, self._held.pop, storage._cdata).atexit = False


def operations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Operations of one call of an operator of torch; 0 for what is no matrix product."""
    packet = func._overloadpacket
    name = packet.__name__
    if "scaled_dot_product" in name:
        backward = "backward" in name  # then the gradient of the result comes first
        there = _attention(func, args, kwargs, args[1:4] if backward else args[:3])
        return 5 * there // 2 if backward else there
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula else 0


def _attention(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], attended: Sequence[Tensor]) -> int:
    """Scores and weighted values; `attended`: queries, keys and values."""
    query, key, value = attended
    rows, heads, queries, size = query.shape
    slots, width = key.shape[2], value.shape[3]
    whole = 2 * rows * heads * queries * slots * (size + width)
    names = [argument.name for argument in func._schema.arguments]
    place = names.index("is_causal") if "is_causal" in names else len(args)
    causal = args[place] if place < len(args) else kwargs.get("is_causal", False)
    return int(whole // 2 if causal else whole)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
