"""Weight deltas on the frozen LM: hooked low-rank maps and swapped tensors, undone when the context ends.

Low-rank deltas add `(x A^T) B^T` to the output of their linear map, row by row where rows differ. Dense deltas stand in
for the parameter as `parameter + delta`, a plain tensor: gradients reach the delta while the parameter stays frozen.
Style follows NVIDIA/kvpress `presses/base_press.py`: hooks in a context manager that undoes itself in `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@contextmanager
def deltas_applied(lm: LM, deltas: Mapping[str, Delta], rows: int) -> Iterator[None]:
    """Run the block with the deltas in place.

    Args:
        lm: the base model.
        deltas: by module name (`LowRank`) or parameter name (`Dense`).
        rows: batch rows of the forwards inside the block; a delta has as many rows or 1.

    Everything is undone when the block ends, exceptions included. Contexts nest: the outer deltas stay in effect.
    """
    with ExitStack() as undo:
        for name, delta in deltas.items():
            if isinstance(delta, LowRank):
                handle = lm.model.get_submodule(name).register_forward_hook(_hook(delta, rows))
                undo.callback(handle.remove)
            else:
                undo.enter_context(_swapped(lm.model, name, delta))
        yield


def _hook(delta: LowRank, rows: int) -> Hook:
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR
    assert a_BRI.dim() == b_BOR.dim() == 3, "low-rank factors are [B, R, in] and [B, out, R]"
    sizes = {a_BRI.shape[0], b_BOR.shape[0]}
    assert sizes <= {1, rows}, f"delta of {sorted(sizes)} rows on a batch of {rows}"
    shared = sizes == {1}

    def add(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        a, b, width = a_BRI.to(output.dtype), b_BOR.to(output.dtype), args[0].shape[-1]
        if shared and delta.dropout is None:
            low_XR = linear(args[0], a.flatten(0, 1)).flatten(0, -2)
        else:
            x_BTI = args[0].reshape(rows, -1, width)  # OPT flattens rows and tokens before its feed-forward
            low_BTR = x_BTI @ a.transpose(1, 2) if delta.dropout is None else delta.dropout(x_BTI, a)
            if not shared:
                out_BTO = output.view(rows, -1, output.shape[-1])
                return _plus(out_BTO, low_BTR, b.transpose(1, 2).expand(rows, -1, -1)).view(output.shape)
            low_XR = low_BTR.flatten(0, 1)
        return _plus(output.flatten(0, -2), low_XR, b.flatten(0, 1).T).view(output.shape)

    add.rows_alike = shared  # type: ignore[attr-defined]  # `lean` then leaves padding out
    return add


def _plus(output: Tensor, low: Tensor, b: Tensor) -> Tensor:
    """`output + low @ b`, in the place of the output where no gradient is wanted."""
    product = torch.addmm if output.dim() == 2 else torch.baddbmm
    return product(output, low, b) if torch.is_grad_enabled() else product(output, low, b, out=output)


@contextmanager
def _swapped(model: nn.Module, name: str, delta: Dense) -> Iterator[None]:
    """`parameter + delta` in every place that holds the parameter (embedding and head may share one)."""
    base = model.get_parameter(name)
    change = delta.delta[0] if delta.delta.dim() == base.dim() + 1 else delta.delta
    assert change.shape == base.shape, f"{name}: delta {tuple(delta.delta.shape)} on {tuple(base.shape)}"
    value = base + change.to(base.dtype)
    places = [(m, leaf) for m in model.modules() for leaf, held in m._parameters.items() if held is base]
    try:
        for module, leaf in places:
            module._parameters[leaf] = value  # type: ignore[assignment]  # a plain tensor keeps its gradient path
        yield
    finally:
        for module, leaf in places:
            module._parameters[leaf] = base
