"""Weight deltas on the frozen LM: hooked low-rank maps and swapped tensors, undone when the context ends.

    with deltas_applied(lm, deltas, rows=4): ...        hooks, rows may differ
    with merged(lm, patch) as rest: ...                 in the weights, once for many forwards under `rest`
    with weights_as(lm, values): ...                    other weights in their place, while these are trained

A dense delta of all rows stands in for the parameter as `parameter + delta`, a plain tensor that gradients reach; one
of several rows adds to the output of its layer. Style follows NVIDIA/kvpress `presses/base_press.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@contextmanager
def deltas_applied(lm: LM, deltas: Mapping[str, Delta], rows: int, marked_BT: Tensor | None = None) -> Iterator[None]:
    """Run the block with the deltas in place.

    Args:
        deltas: by module name (`LowRank`) or parameter name (`Dense`).
        rows: batch rows of the forwards inside the block; a delta has as many rows or 1.
        marked_BT: bool [B or 1, T] where every forward in the block is of T tokens a row: the deltas, all of them
            low-rank, act at the marked tokens only. None: at every token.

    Everything is undone when the block ends, exceptions included. Contexts nest: the outer deltas stay in effect.
    """
    ways_of(lm)  # which are found out on the model as it is
    dense = {name: delta for name, delta in deltas.items() if isinstance(delta, Dense)}
    assert marked_BT is None or not dense, "a dense delta acts at every token"
    with ExitStack() as undo:
        for name, delta in deltas.items():
            if isinstance(delta, LowRank):
                module, hook = lm.model.get_submodule(name), _hook(delta, rows, marked_BT)
                if not len(delta.a_BRI) == len(delta.b_BOR) == 1:
                    _refuse_of_head(lm, name, module._parameters.values())
            elif not delta.is_one_change:
                module, hook = lm.model.get_submodule(name.rpartition(".")[0]), _by_row(lm, name, delta.delta, rows)
            else:
                continue
            undo.callback(module.register_forward_hook(hook).remove)
        if shared := {name: dense_delta.delta[0] for name, dense_delta in dense.items() if dense_delta.is_one_change}:
            undo.enter_context(_swapped(lm.model, shared))
        yield


@contextmanager
def merged(lm: LM, patch: Patch) -> Iterator[Patch]:
    """Run the block with the patch's deltas in the weights: computed once, at no cost to the forwards of the block.

    Gives what is left of the patch: tokens, prefix, and deltas that differ from row to row, are trained with dropout,
    or are of the head. Forwards under it equal those under the whole patch; differentiable as they are. When the block
    ends, exceptions included, the parameters are the very ones they were.
    """
    ways_of(lm)
    if not patch.deltas:
        yield patch
        return
    inner = set(lm.linear_names())  # not the head: its weight may be the embedding, too
    whole = {
        name: delta
        for name, delta in patch.deltas.items()
        if delta.is_one_change and (isinstance(delta, Dense) or name in inner)
    }
    left = {name: delta for name, delta in patch.deltas.items() if name not in whole}
    with _swapped(lm.model, weight_changes(lm, whole)):
        yield replace(patch, deltas=left)


def weight_changes(lm: LM, deltas: Mapping[str, Delta]) -> dict[str, Tensor]:
    """Changes of weights that these deltas, alike for all rows, make: by parameter name, in the parameter's layout."""
    changes: dict[str, Tensor] = {}
    for name, delta in deltas.items():
        if isinstance(delta, LowRank):
            assert len(delta.a_BRI) == len(delta.b_BOR) == 1, f"{name}: a delta of several rows is not one change"
            change_OI = delta.b_BOR[0] @ delta.a_BRI[0]
            plain = isinstance(lm.model.get_submodule(name), nn.Linear)
            parameter, change = f"{name}.weight", change_OI if plain else change_OI.T
        else:
            assert delta.is_one_change, f"{name}: a delta of several rows is not one change"
            parameter, change = name, delta.delta[0]
        changes[parameter] = changes[parameter] + change if parameter in changes else change
    return changes


def _hook(delta: LowRank, rows: int, marked_BT: Tensor | None) -> Hook:
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR
    assert a_BRI.dim() == b_BOR.dim() == 3, "low-rank factors are [B, R, in] and [B, out, R]"
    sizes = {a_BRI.shape[0], b_BOR.shape[0]}
    assert sizes <= {1, rows}, f"delta of {sorted(sizes)} rows on a batch of {rows}"
    shared = sizes == {1}

    def add(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # output + (x A^T) B^T, never the product B A of the layer's own size: [T, I] to [T, R] to [T, O].
        a, b, width = a_BRI.to(output), b_BOR.to(output), args[0].shape[-1]
        if shared and delta.dropout is None:  # one delta for all rows: their tokens in one product
            low = linear(args[0], a.flatten(0, 1)).flatten(0, -2)
        else:
            x_BTI = args[0].reshape(rows, -1, width)  # OPT flattens rows and tokens before its feed-forward
            low = x_BTI @ a.transpose(1, 2) if delta.dropout is None else delta.dropout(x_BTI, a)
        if marked_BT is not None:
            low = _at_marked(low, marked_BT, rows)
        if not shared:
            out_BTO = output.view(rows, -1, output.shape[-1])
            return _plus(out_BTO, low, b.transpose(1, 2).expand(rows, -1, -1)).view(output.shape)
        return _plus(output.flatten(0, -2), low.flatten(0, -2), b.flatten(0, 1).T).view(output.shape)

    return add


def _by_row(lm: LM, name: str, delta: Tensor, rows: int) -> Hook:
    """Have a layer act under `parameter + delta[row]` in each row of a batch."""
    owner, _, leaf = name.rpartition(".")
    parameter: Tensor | None = lm.model.get_submodule(owner)._parameters[leaf]
    assert parameter is not None, f"{name} is no parameter"
    assert delta.shape[1:] == parameter.shape, f"{name}: delta {tuple(delta.shape)} on {tuple(parameter.shape)}"
    assert len(delta) == rows, f"{name}: delta of {len(delta)} rows on a batch of {rows}"
    _refuse_of_head(lm, name, [parameter])

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        (x,) = args
        assert len(x) % rows == 0, f"{name}: a delta of {rows} rows where rows are not apart"
        changed = []
        for x_row, change in zip(x.chunk(rows), delta, strict=True):  # OPT flattens rows and tokens
            plain = module.forward(x_row)
            with _swapped(module, {leaf: change}):
                changed.append(module.forward(x_row) - plain)
        return output + torch.cat(changed)

    return add


def _refuse_of_head(lm: LM, name: str, changed: Iterable[Tensor | None]) -> None:
    """See that a delta of several rows is not of the head, which is given chosen tokens of all rows together."""
    head = [held for held in lm.model.get_output_embeddings()._parameters.values() if held is not None]
    assert all(one is not held for one in changed for held in head), f"{name}: a delta of the head is of all rows alike"


def _at_marked(low: Tensor, marked_BT: Tensor, rows: int) -> Tensor:
    """The products [B, T, R] or [B T, R] at marked tokens, and zeros."""
    tokens = low.numel() // (rows * low.shape[-1])
    assert marked_BT.shape[1] == tokens, f"marks of {marked_BT.shape[1]} tokens on a forward of {tokens}"
    marks = marked_BT.to(low).expand(rows, -1).reshape(*low.shape[:-1], 1)
    return low * marks


def _plus(output: Tensor, low: Tensor, b: Tensor) -> Tensor:
    """`output + low @ b`, in the place of the output where no gradient is wanted."""
    product = torch.addmm if output.dim() == 2 else torch.baddbmm
    return product(output, low, b) if torch.is_grad_enabled() else product(output, low, b, out=output)


@contextmanager
def weights_as(lm: LM, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Run the block with these values in the place of parameters: plain tensors, which gradients reach.

    Args:
        values: by parameter name; they are brought to the model's number format. A parameter that stands in two places
            (embedding and head) is given once.

    The parameters are the very ones they were when the block ends, exceptions included.
    """
    ways_of(lm)
    held = {name: (_held(lm.model, name), value) for name, value in values.items()}
    with _placed(lm.model, {id(base): (base, value.to(base)) for base, value in held.values()}):
        yield


@contextmanager
def _swapped(model: nn.Module, changes: Mapping[str, Tensor]) -> Iterator[None]:
    """`parameter + change` in every place that holds the parameter (embedding and head may share one)."""
    values: dict[int, tuple[Tensor, Tensor]] = {}
    for name, change in changes.items():
        base = _held(model, name)  # under another swap a plain tensor
        assert change.shape == base.shape, f"{name}: delta {tuple(change.shape)} on {tuple(base.shape)}"
        _, value = values.get(id(base), (base, base))
        values[id(base)] = base, value + change.to(base)
    with _placed(model, values):
        yield


def _held(model: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    held: Tensor | None = model.get_submodule(owner)._parameters[leaf]
    assert held is not None, f"{name} is no parameter"
    return held


@contextmanager
def _placed(model: nn.Module, values: Mapping[int, tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Each value in every place that holds its parameter: (parameter, value) by the parameter's id."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for leaf, held in module._parameters.items():
            places.setdefault(id(held), []).append((module, leaf))
    try:
        for key, (_, value) in values.items():
            for module, leaf in places[key]:
                module._parameters[leaf] = value  # type: ignore[assignment]  # a plain tensor keeps its gradient path
        yield
    finally:
        for key, (base, _) in values.items():
            for module, leaf in places[key]:
                module._parameters[leaf] = base  # type: ignore[assignment]
