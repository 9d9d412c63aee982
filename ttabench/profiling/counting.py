"""The largest set of tensors that a piece of work holds at a time."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is not typed there
    """Counts until it is left.

    Attributes:
        peak_tensor_bytes: the most that tensors made inside held at a time; those of the model are not among them, nor
            is what kernels allocate for themselves.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_tensor_bytes = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and note it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
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


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
