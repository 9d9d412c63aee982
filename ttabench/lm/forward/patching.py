"""Application of a `Patch` to the frozen LM. All changes are undone.

    patch = encode_patch(lm, patch)                  # read tokens once, into keys and values
    logits_BTV, window = forward(lm, patch, ids_BT)  # text rows on top of them
    hidden_BTC, window = hidden_states(lm, patch, ids_BT, layout)   # tokens placed by a `Layout`
    with deltas_applied(lm, deltas, rows=4): ...     # hooks; rows may differ
    with weights_replaced(lm, values): ...           # other weights, e.g. while they are trained
    with observe_inputs(lm, see, [0, 5], rows=2): ...    # see(5, hidden_BTC) at every forward
    with gradient_checkpointing(lm): ...             # gradients keep inputs of layers only

The window of a row is [prefix slots] [BOS, unless in the prefix] [text]. Prefix keys are never
rotated. Text positions start at `prefix.next_position_B` and skip padding, so padding changes
nothing. `forward` adds no BOS. `text_start` returns the start of a text; `prefill`, `scoring` and
`answering` add it.

A dense delta replaces the parameter by `parameter + delta`, a plain tensor with gradients. Style:
NVIDIA/kvpress `presses/base_press.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache

from ttabench.core.errors import UserError
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.window import Layout, Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Dense, LowRank, Patch, Prefix, select_tensor_rows

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]
InputLocation: TypeAlias = int | str
"""Decoder layer by number (its input before the first norm), or linear map by name."""
InputObserver: TypeAlias = Callable[[InputLocation, Tensor], object]
"""Callback with location and input: [B, T, C] of a layer, [B, T, I] of a map. Ignore padding."""


@contextmanager
def deltas_applied(
    lm: LM, deltas: Mapping[str, Delta], rows: int, delta_mask_BT: Tensor | None = None
) -> Iterator[None]:
    """Apply deltas inside the block.

    Args:
        deltas: deltas by module name (`LowRank`) or parameter name (`Dense`).
        rows: batch rows of forwards in the block; a delta has as many rows or 1.
        delta_mask_BT: bool [B or 1, T]: tokens at which the deltas, all low-rank, act. Forwards
            must then have T tokens per row. None: all tokens.

    Contexts nest: outer deltas stay in effect.
    """
    get_capabilities(lm)  # probed on the unchanged model
    dense = {name: delta.delta[0] for name, delta in deltas.items() if isinstance(delta, Dense)}
    assert delta_mask_BT is None or not dense, "dense deltas do not support delta_mask_BT"
    assert all(len(delta.delta) == 1 for delta in deltas.values() if isinstance(delta, Dense)), (
        "dense deltas must have one row"
    )
    with ExitStack() as undo:
        for name, delta in deltas.items():
            if isinstance(delta, LowRank):
                module, hook = (
                    lm.model.get_submodule(name),
                    _low_rank_hook(delta, rows, delta_mask_BT),
                )
                if not len(delta.a_BRI) == len(delta.b_BOR) == 1:
                    # the head gets selected tokens of all rows as one batch
                    head = {
                        id(tensor)
                        for tensor in lm.model.get_output_embeddings()._parameters.values()
                    } - {id(None)}
                    shares = head & {id(tensor) for tensor in module._parameters.values()}
                    assert not shares, f"{name}: a delta of the head must be shared by all rows"
                undo.callback(module.register_forward_hook(hook).remove)
        if dense:
            undo.enter_context(weights_replaced(lm, _changed_weights(lm.model, dense)))
        yield


def weight_changes(lm: LM, deltas: Mapping[str, Delta]) -> dict[str, Tensor]:
    """Convert shared deltas to changes of weights by parameter name, in the parameter's layout."""
    changes: dict[str, Tensor] = {}
    for name, delta in deltas.items():
        if isinstance(delta, LowRank):
            assert len(delta.a_BRI) == len(delta.b_BOR) == 1, f"{name}: the delta must have one row"
            change_OI = delta.b_BOR[0] @ delta.a_BRI[0]
            plain = isinstance(lm.model.get_submodule(name), nn.Linear)
            parameter, change = f"{name}.weight", change_OI if plain else change_OI.T
        else:
            parameter, change = name, delta.delta[0]
        changes[parameter] = changes[parameter] + change if parameter in changes else change
    return changes


def _low_rank_hook(delta: LowRank, rows: int, delta_mask_BT: Tensor | None) -> Hook:
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR
    assert a_BRI.dim() == b_BOR.dim() == 3, "low-rank factors are [B, R, in] and [B, out, R]"
    sizes = {a_BRI.shape[0], b_BOR.shape[0]}
    assert sizes <= {1, rows}, f"delta of {sorted(sizes)} rows on a batch of {rows}"
    shared = sizes == {1}

    def add(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # output + (x A^T) B^T without the full product B A: [T, I] to [T, R] to [T, O]
        a, b, width = a_BRI.to(output), b_BOR.to(output), args[0].shape[-1]
        if shared and delta.dropout is None:  # one delta for all rows: their tokens in one product
            low = linear(args[0], a.flatten(0, 1)).flatten(0, -2)
        else:
            # OPT flattens rows and tokens before its feed-forward layers
            x_BTI = args[0].reshape(rows, -1, width)
            low = x_BTI @ a.transpose(1, 2) if delta.dropout is None else delta.dropout(x_BTI, a)
        if delta_mask_BT is not None:
            tokens = low.numel() // (rows * low.shape[-1])
            assert delta_mask_BT.shape[1] == tokens, (
                f"a mask of {delta_mask_BT.shape[1]} tokens on a forward of {tokens}"
            )
            low = low * delta_mask_BT.to(low).expand(rows, -1).reshape(*low.shape[:-1], 1)
        if not shared:
            out_BTO = output.view(rows, -1, output.shape[-1])
            return _add_product(out_BTO, low, b.transpose(1, 2).expand(rows, -1, -1)).view(
                output.shape
            )
        return _add_product(output.flatten(0, -2), low.flatten(0, -2), b.flatten(0, 1).T).view(
            output.shape
        )

    return add


def _add_product(output: Tensor, low: Tensor, b: Tensor) -> Tensor:
    """Return `output + low @ b`, in place if no gradient is needed."""
    product = torch.addmm if output.dim() == 2 else torch.baddbmm
    return (
        product(output, low, b) if torch.is_grad_enabled() else product(output, low, b, out=output)
    )


@contextmanager
def weights_replaced(lm: LM, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters by these values, by name, inside the block.

    The values are plain tensors that gradients reach, cast to the number format of the model. A
    parameter with two names (embedding and head) is given once.
    """
    get_capabilities(lm)
    replacements = {
        id(base): (base, value.to(base))
        for base, value in ((_get_parameter(lm.model, n), v) for n, v in values.items())
    }
    places = [  # a parameter can belong to several modules
        (module, leaf, *replacements[id(tensor)])
        for module in lm.model.modules()
        for leaf, tensor in module._parameters.items()
        if id(tensor) in replacements
    ]
    try:
        for module, leaf, _, value in places:
            module._parameters[leaf] = value  # a plain tensor keeps its gradient path
        yield
    finally:
        for module, leaf, base, _ in places:
            module._parameters[leaf] = base


def _changed_weights(model: nn.Module, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `parameter + change` by name. Changes of a parameter with two names are added."""
    values: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for name, change in changes.items():
        base = _get_parameter(model, name)  # inside another `weights_replaced` a plain tensor
        assert change.shape == base.shape, (
            f"{name}: delta {tuple(change.shape)} on {tuple(base.shape)}"
        )
        first = names.setdefault(id(base), name)
        values[first] = values.get(first, base) + change.to(base)
    return values


def _get_parameter(model: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    parameter: Tensor | None = model.get_submodule(owner)._parameters[leaf]
    assert parameter is not None, f"{name} is not a parameter"
    return parameter


@contextmanager
def observe_inputs(
    lm: LM, see: InputObserver, places: Sequence[InputLocation], rows: int
) -> Iterator[None]:
    """Pass the inputs of layers or maps to `see`, in model order, during forwards in the block."""
    get_capabilities(lm)  # probed before anything is observed
    layers = lm.blocks()

    def entering(
        place: InputLocation, _module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        entered: Tensor = args[0] if args else named["hidden_states"]
        if isinstance(place, int) and entered.dim() > 3:
            fault = f"{lm.name} ({lm.config.model_type}) has several hidden states per token"
            raise UserError(f"{fault}.", "Use none, lora or templora.")
        # some models flatten rows and tokens
        see(place, entered.reshape(rows, -1, entered.shape[-1]))

    with ExitStack() as undo:
        for place in places:
            module = layers[place] if isinstance(place, int) else lm.model.get_submodule(place)
            undo.callback(
                module.register_forward_pre_hook(partial(entering, place), with_kwargs=True).remove
            )
        yield


@contextmanager
def gradient_checkpointing(lm: LM) -> Iterator[None]:
    """Keep only the inputs of decoder layers for gradients, and recompute layers when needed.

    The recomputation uses the hooks, weights, window and random draws of the first forward. It
    saves memory for one more forward (Chen et al., arXiv 1604.06174).
    """
    # accelerate sets such a `forward`
    blocks = [(block, vars(block).get("forward")) for block in lm.blocks()]
    try:
        for number, (block, _) in enumerate(blocks):
            block.forward = partial(_checkpointed_forward, block, block.forward, number)
        yield
    finally:
        for block, own in blocks:
            vars(block).pop("forward")
            vars(block).update({} if own is None else {"forward": own})


_HOOKS = ("hooks", "pre_hooks", "hooks_with_kwargs", "pre_hooks_with_kwargs")
_MODULE_STATE = ("_parameters", *(f"_forward_{name}" for name in _HOOKS))


def _checkpointed_forward(
    block: nn.Module, forward: Callable[..., Any], number: int, *args: Any, **named: Any
) -> Any:
    """Run the forward of a decoder layer; gradients keep only its input."""
    if not torch.is_grad_enabled():
        return forward(*args, **named)
    modules = [vars(module) for module in block.modules()]
    caches = [
        vars(each.layers[number]) for each in (*args, *named.values()) if isinstance(each, Cache)
    ]
    first = [(place, {name: place[name].copy() for name in _MODULE_STATE}) for place in modules]
    first += [(place, {name: place[name] for name in ("keys", "values")}) for place in caches]
    run, times = partial(copy_context().run, forward), count()  # with the attention extras

    def layer(*args: Any, **named: Any) -> Any:
        if not next(times):
            return run(*args, **named)
        now = [(place, {name: place[name] for name in found}) for place, found in first]
        try:
            for place, found in first:
                place.update(found)
            return run(*args, **named)
        finally:
            for place, found in now:
                place.update(found)

    return checkpoint(layer, *args, use_reentrant=False, **named)


def gradient_step_bytes(lm: LM, tokens: int) -> int:
    """Estimate the bytes that a gradient step through all adapted maps keeps for the backward pass.

    It is twice the inputs and outputs of the linear maps, to include norms, rotations, gates and
    dropout.
    """
    ends = sum(sum(lm.linear_shape(name)) for name in lm.linear_names())
    return 2 * ends * tokens * lm.dtype.itemsize


BLOCK_TOKENS, GPU_BLOCK_TOKENS = 2048, 8192
"""Tokens per forward. Bounds a stored mask to BLOCK x context; a GPU may need no mask."""


def forward(
    lm: LM, patch: Patch, ids_BT: Tensor, mask_BT: Tensor | None = None
) -> tuple[Tensor, Window]:
    """Run one forward of text rows under a patch. Differentiable in prefix and deltas.

    Args:
        patch: patch of 1 or B rows. Its tokens are read first; use `encode_patch` to reuse them.
        ids_BT: text, including BOS if the text has one.
        mask_BT: False for padding, on either side; None without padding.

    Returns:
        Logits [B, T, V], and the window, which can be fed more. Raises a UserError beyond the
        position limit.
    """
    patch = encode_patch(lm, patch)
    hidden_BTD, window = hidden_states(lm, patch, ids_BT, None, mask_BT)
    with deltas_applied(lm, patch.deltas, len(ids_BT)):
        return lm.logits(hidden_BTD), window


def prepare_mask(lm: LM, mask_BT: Tensor | None) -> Tensor | None:
    """Convert a mask for `Window.feed`: bool on the device of the model; None without padding."""
    return None if mask_BT is None or bool(mask_BT.all()) else mask_BT.to(lm.device).bool()


def hidden_states(
    lm: LM, patch: Patch, ids_BT: Tensor, layout: Layout | None, mask_BT: Tensor | None = None
) -> tuple[Tensor, Window]:
    """Run one forward like `forward`, without the head, with tokens placed by `layout`.

    Returns last hidden states [B, T, C] for `lm.logits`, and the window, which continues after the
    last position and sees all real slots. Differentiable.
    """
    patch, mask_BT = encode_patch(lm, patch), prepare_mask(lm, mask_BT)
    assert patch_batch_size(patch) in (1, len(ids_BT)), (
        f"patch of {patch_batch_size(patch)} rows on a batch of {len(ids_BT)}"
    )
    if layout is not None and layout.positions_BT is not None:
        last = layout.positions_BT.to(lm.device)
        check_fits(
            lm, None, [1 + int((last if mask_BT is None else last.masked_fill(~mask_BT, 0)).max())]
        )
    else:
        check_fits(lm, patch.prefix, [ids_BT.shape[1]] if mask_BT is None else mask_BT.sum(1))
    window = Window(lm, patch.prefix, len(ids_BT))
    with deltas_applied(
        lm, patch.deltas, len(ids_BT), None if layout is None else layout.delta_mask_BT
    ):
        return window.feed(ids_BT.to(lm.device), mask_BT, layout), window


def prefill(lm: LM, patch: Patch, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Prefix:
    """Read text on top of a patch, without logits.

    Args:
        patch: patch of 1 or B rows. The result has the larger number of rows of patch and ids.
        ids_BT: text without BOS; it is added unless the prefix contains one.
        mask_BT: False for padding; None without padding.

    Returns:
        The prefix extended by the text. Reading in chunks gives the same prefix as reading at once.
        Eviction is postponed until a query.
    """
    patch = encode_patch(lm, patch)
    rows = max(patch_batch_size(patch), ids_BT.shape[0])
    ids_BT = ids_BT.to(lm.device).expand(rows, -1)
    start = text_start(lm, patch)
    check_fits(
        lm,
        patch.prefix,
        [len(start) + ids_BT.shape[1]] if mask_BT is None else len(start) + mask_BT.sum(1),
    )
    mask_BT = prepare_mask(lm, mask_BT)
    if start:
        ids_BT = torch.cat([ids_BT.new_tensor(start).expand(rows, -1), ids_BT], dim=1)
    if mask_BT is not None:
        mask_BT = pad(mask_BT.expand(rows, -1), (len(start), 0), value=True)
    # In blocks: activations do not grow with length; keys and values fill one buffer in place.
    window = Window(lm, patch.prefix, rows, capacity=ids_BT.shape[1], evict=False)
    block = (
        GPU_BLOCK_TOKENS
        if lm.device.type == "cuda" and mask_BT is None and window.needs_no_mask
        else BLOCK_TOKENS
    )
    with deltas_applied(lm, patch.deltas, rows):
        for begin in range(0, ids_BT.shape[1], block):
            part = slice(begin, begin + block)
            window.feed(ids_BT[:, part], None if mask_BT is None else mask_BT[:, part])
    return replace(window.prefix(), holds_bos=True)


def encode_patch(lm: LM, patch: Patch) -> Patch:
    """Read the tokens of a patch with its adapted weights into its prefix.

    Returns a patch of prefix and deltas; an encoded patch is returned as is.
    """
    if patch.tokens_BT is None:
        return patch
    bare = replace(patch, tokens_BT=None, tokens_mask_BT=None)
    return replace(bare, prefix=prefill(lm, bare, patch.tokens_BT, patch.tokens_mask_BT))


def continues_text(patch: Patch) -> bool:
    """True if a text under this patch follows other text in the window."""
    return patch.tokens_BT is not None or (patch.prefix is not None and patch.prefix.holds_bos)


def text_start(lm: LM, patch: Patch) -> list[int]:
    """Return the ids that start a text under this encoded patch; empty for a continuation."""
    return [] if continues_text(patch) else list(lm.start_ids)


READ_LESS_HINT = (
    "Use less context (--task-set documents=N; --set truncate=left, max_tokens=N) "
    "or a --model with more positions."
)


def check_fits(
    lm: LM, prefix: Prefix | None, counts: Sequence[int] | Tensor, hint: str = READ_LESS_HINT
) -> None:
    """Raise a UserError with `hint` if additional tokens per row exceed the position limit."""
    more_B = torch.as_tensor(counts)
    used_B = (torch.zeros(1, dtype=torch.int64) if prefix is None else prefix.next_position_B).to(
        more_B.device
    )
    worst = int((used_B + more_B).max())
    if worst > lm.max_positions:
        fault = (
            f"A window of {worst} tokens ({int(used_B.max())} of context) "
            f"exceeds the limit: {lm.position_limit}."
        )
        raise UserError(fault, hint)


def patch_batch_size(patch: Patch) -> int:
    """Return the rows of a patch: those of its largest part (others have as many, or 1)."""
    tensors = [t for t in (patch.tokens_BT, patch.tokens_mask_BT) if t is not None]
    if patch.prefix is not None:
        tensors += [patch.prefix.keys_LBHPD[0], patch.prefix.next_position_B]
    for delta in patch.deltas.values():
        tensors += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else []
    sizes = {1, *map(len, tensors)}
    assert len(sizes) <= 2, f"parts of a patch have different rows: {sorted(sizes)}"
    return max(sizes)


def select_rows(patch: Patch, indices: Sequence[int] | Tensor) -> Patch:
    """Select rows of a patch, which may repeat. Shared parts stay shared."""
    if patch_batch_size(patch) == 1:
        return patch
    index_N = torch.as_tensor(indices, dtype=torch.int64)

    def picked(delta: Delta) -> Delta:
        if isinstance(delta, Dense):
            return delta
        return replace(
            delta,
            a_BRI=select_tensor_rows(delta.a_BRI, index_N),
            b_BOR=select_tensor_rows(delta.b_BOR, index_N),
        )

    return Patch(
        tokens_BT=None if patch.tokens_BT is None else select_tensor_rows(patch.tokens_BT, index_N),
        tokens_mask_BT=None
        if patch.tokens_mask_BT is None
        else select_tensor_rows(patch.tokens_mask_BT, index_N),
        prefix=None if patch.prefix is None else patch.prefix.select(index_N),
        deltas={name: picked(delta) for name, delta in patch.deltas.items()},
    )
