"""The largest set of tensors that a piece of work holds at a time."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
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
        out = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):  # one that was given is a view of what was there, or was changed in place
            key, size = storage._cdata, storage.nbytes()
            if size and key not in given and key not in self._held:
                self._held[key] = size
                self.peak_tensor_bytes = max(self.peak_tensor_bytes, sum(self._held.values()))
                weakref.finalize(storage, self._held.pop, key).atexit = False
        return out


def _storages(values: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
