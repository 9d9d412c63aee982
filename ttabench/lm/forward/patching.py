"""Forwards of the frozen LM under a `Patch`. All changes of the model are undone afterwards.

    patch = encode_patch(lm, patch)                  # read the patch's tokens into its prefix
    logits_BTV, window = forward(lm, patch, ids_BT)  # read text after the prefix
    hidden_BTC, window = hidden_states(lm, patch, ids_BT, layout)   # tokens placed by a `Layout`
    with deltas_applied(lm, deltas, rows=4): ...     # hooks; rows may differ
    with weights_replaced(lm, values): ...           # other weights, e.g. while they are trained
    with observe_inputs(lm, see, [0, 5], rows=2): ...    # see(5, hidden_BTC) at every forward
    with gradient_checkpointing(lm): ...             # layers are recomputed for gradients

The window of a row is [prefix slots] [BOS, unless in the prefix] [text]. No rotary embedding is
applied to keys of the prefix. Text positions start at `prefix.next_position_B` and skip padding, so
that padding does not change results. `forward` adds no BOS; `prefill`, `scoring` and `answering` add the
`text_start`.

A dense delta replaces a parameter by the tensor `parameter + delta`, so that gradients reach the
delta. The context managers follow NVIDIA/kvpress `presses/base_press.py`.
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
from torch.nn.utils.rnn import pad_sequence
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
"""Callback with the location and its input: [B, T, C] of a layer, [B, T, I] of a linear map.

The input includes padding, which the callback must ignore.
"""


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

    Blocks can be nested: the deltas of outer blocks stay in effect.
    """
    get_capabilities(lm)  # probed on the unchanged model
    dense = {name: delta.delta[0] for name, delta in deltas.items() if isinstance(delta, Dense)}
    assert delta_mask_BT is None or not dense, "dense deltas do not support delta_mask_BT"
    assert all(len(delta.delta) == 1 for delta in deltas.values() if isinstance(delta, Dense)), (
        "dense deltas must have one row"
    )
    with ExitStack() as stack:
        for name, delta in deltas.items():
            if isinstance(delta, LowRank):
                module = lm.model.get_submodule(name)
                # the head gets selected tokens of all rows in one batch, so rows are unknown
                assert (
                    len(delta.a_BRI) == len(delta.b_BOR) == 1
                    or module.weight is not lm.model.get_output_embeddings().weight
                ), f"{name}: a delta of the head must be shared by all rows"
                hook = _low_rank_hook(delta, rows, delta_mask_BT)
                stack.callback(module.register_forward_hook(hook).remove)
        if dense:
            stack.enter_context(weights_replaced(lm, _changed_weights(lm.model, dense)))
        yield


def weight_changes(lm: LM, deltas: Mapping[str, Delta]) -> dict[str, Tensor]:
    """Convert deltas of one row to changes by parameter name, in the shape of the parameter."""
    changes: dict[str, Tensor] = {}
    for name, delta in deltas.items():
        if isinstance(delta, LowRank):
            assert len(delta.a_BRI) == len(delta.b_BOR) == 1, f"{name}: the delta must have one row"
            change_OI = delta.b_BOR[0] @ delta.a_BRI[0]
            is_linear = isinstance(lm.model.get_submodule(name), nn.Linear)
            parameter, change = f"{name}.weight", change_OI if is_linear else change_OI.T
        else:
            parameter, change = name, delta.delta[0]
        changes[parameter] = changes[parameter] + change if parameter in changes else change
    return changes


def _low_rank_hook(delta: LowRank, rows: int, delta_mask_BT: Tensor | None) -> Hook:
    a_BRI, b_BOR = delta.a_BRI, delta.b_BOR
    assert a_BRI.dim() == b_BOR.dim() == 3, "low-rank factors are [B, R, in] and [B, out, R]"
    sizes = {a_BRI.shape[0], b_BOR.shape[0]}
    assert sizes <= {1, rows}, f"delta of {sorted(sizes)} rows on a batch of {rows}"
    is_shared = sizes == {1}

    def add(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # output + (x A^T) B^T, without the full product B A: [T, I] to [T, R] to [T, O]
        a, b, width = a_BRI.to(output), b_BOR.to(output), args[0].shape[-1]
        if is_shared and delta.dropout is None:
            # one delta for all rows: the tokens of all rows are multiplied at once
            projected = linear(args[0], a.flatten(0, 1)).flatten(0, -2)
        else:
            # OPT flattens rows and tokens before its feed-forward layers
            x_BTI = args[0].reshape(rows, -1, width)
            projected = (
                x_BTI @ a.transpose(1, 2) if delta.dropout is None else delta.dropout(x_BTI, a)
            )
        if delta_mask_BT is not None:
            tokens = projected.numel() // (rows * projected.shape[-1])
            assert delta_mask_BT.shape[1] == tokens, (
                f"a mask of {delta_mask_BT.shape[1]} tokens on a forward of {tokens}"
            )
            projected = projected * delta_mask_BT.to(projected).expand(rows, -1).reshape(
                *projected.shape[:-1], 1
            )
        if not is_shared:
            out_BTO = output.view(rows, -1, output.shape[-1])
            return _add_product(out_BTO, projected, b.transpose(1, 2).expand(rows, -1, -1)).view(
                output.shape
            )
        return _add_product(
            output.flatten(0, -2), projected.flatten(0, -2), b.flatten(0, 1).T
        ).view(output.shape)

    return add


def _add_product(output: Tensor, projected: Tensor, b: Tensor) -> Tensor:
    """Return `output + projected @ b`; changes `output` in place if no gradient is needed."""
    add_matrix_product = torch.addmm if output.dim() == 2 else torch.baddbmm
    return (
        add_matrix_product(output, projected, b)
        if torch.is_grad_enabled()
        else add_matrix_product(output, projected, b, out=output)
    )


@contextmanager
def weights_replaced(lm: LM, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters by tensors inside the block.

    Args:
        values: new tensors by parameter name, cast to the dtype of the model; gradients reach them.
            A parameter with two names (tied embedding and head) is named once.
    """
    get_capabilities(lm)
    replacements: dict[int, Tensor] = {}
    for name, value in values.items():
        parameter = _get_parameter(lm.model, name)
        replacements[id(parameter)] = value.to(parameter)
    owners = [  # a parameter can belong to several modules
        (module, leaf, tensor)
        for module in lm.model.modules()
        for leaf, tensor in module._parameters.items()
        if id(tensor) in replacements
    ]
    try:
        for module, leaf, tensor in owners:
            # an nn.Parameter would cut the gradient path
            module._parameters[leaf] = replacements[id(tensor)]
        yield
    finally:
        for module, leaf, tensor in owners:
            module._parameters[leaf] = tensor


def _changed_weights(model: nn.Module, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `parameter + change` by name.

    If changes name a parameter by both of its names, their sum is added.
    """
    values: dict[str, Tensor] = {}
    name_by_id: dict[int, str] = {}
    for name, change in changes.items():
        parameter = _get_parameter(model, name)  # a tensor, if inside another `weights_replaced`
        assert change.shape == parameter.shape, (
            f"{name}: delta {tuple(change.shape)} on {tuple(parameter.shape)}"
        )
        first_name = name_by_id.setdefault(id(parameter), name)
        values[first_name] = values.get(first_name, parameter) + change.to(parameter)
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

    def pass_input(
        place: InputLocation, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        input_BTC: Tensor = args[0] if args else kwargs["hidden_states"]
        if isinstance(place, int) and input_BTC.dim() > 3:
            fault = f"{lm.name} ({lm.config.model_type}) has several hidden states per token"
            raise UserError(f"{fault}.", "Use none, lora or templora.")
        # some models flatten rows and tokens
        see(place, input_BTC.reshape(rows, -1, input_BTC.shape[-1]))

    with ExitStack() as stack:
        for place in places:
            module = layers[place] if isinstance(place, int) else lm.model.get_submodule(place)
            stack.callback(
                module.register_forward_pre_hook(
                    partial(pass_input, place), with_kwargs=True
                ).remove
            )
        yield


@contextmanager
def gradient_checkpointing(lm: LM) -> Iterator[None]:
    """Keep only the inputs of decoder layers for gradients, and recompute layers when needed.

    The recomputation uses the hooks, weights, KV cache and random draws of the first forward. It
    saves memory, and costs one more forward (Chen et al., arXiv 1604.06174). Layers that change a
    cache object of the model's own class are not recomputed.
    """
    is_opaque = get_capabilities(lm).is_opaque
    # accelerate sets a `forward` on the instance, which is restored afterwards
    blocks = [(block, vars(block).get("forward")) for block in lm.blocks()]
    try:
        for index, (block, _) in enumerate(blocks):
            block.forward = partial(
                _checkpointed_forward, block, block.forward, None if is_opaque else index
            )
        yield
    finally:
        for block, own_forward in blocks:
            vars(block).pop("forward")
            vars(block).update({} if own_forward is None else {"forward": own_forward})


_HOOKS = ("hooks", "pre_hooks", "hooks_with_kwargs", "pre_hooks_with_kwargs")
_MODULE_STATE = ("_parameters", *(f"_forward_{name}" for name in _HOOKS))


def _checkpointed_forward(
    block: nn.Module,
    forward: Callable[..., Any],
    block_index: int | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the forward of a decoder layer, and keep only its input for gradients.

    The recomputation runs with the hooks, weights and cache that the first forward had.
    """
    given = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Cache)]
    if not torch.is_grad_enabled() or (given and block_index is None):
        return forward(*args, **kwargs)
    modules = [vars(module) for module in block.modules()]
    caches = [vars(cache.layers[block_index]) for cache in given]
    initial = [
        (attributes, {name: attributes[name].copy() for name in _MODULE_STATE})
        for attributes in modules
    ]
    initial += [(attributes, _copy_dicts(attributes)) for attributes in caches]
    # context variables hold the attention extras
    run_in_context, calls = partial(copy_context().run, forward), count()

    def run_layer(*args: Any, **kwargs: Any) -> Any:
        if not next(calls):
            return run_in_context(*args, **kwargs)
        current = [
            (attributes, {name: attributes[name] for name in saved})
            for attributes, saved in initial
        ]
        try:
            for attributes, saved in initial:
                attributes.update(_copy_dicts(saved))
            return run_in_context(*args, **kwargs)
        finally:
            for attributes, saved in current:
                attributes.update(saved)

    return checkpoint(run_layer, *args, use_reentrant=False, **kwargs)


def _copy_dicts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy attributes, and dictionaries among them (recurrent states by number)."""
    return {
        name: value.copy() if isinstance(value, dict) else value
        for name, value in attributes.items()
    }


def gradient_step_bytes(lm: LM, tokens: int) -> int:
    """Estimate the bytes that a gradient step through all adapted maps keeps for the backward pass.

    The estimate is the inputs and outputs of the linear maps, doubled to include norms, rotary
    embeddings, gates and dropout.
    """
    features_per_token = sum(sum(lm.linear_shape(name)) for name in lm.linear_names())
    return 2 * features_per_token * tokens * lm.dtype.itemsize


TEXT = "text"
"""Name in `Prefix.model_cache` of the ids that a model on a server reads before each text."""
BLOCK_TOKENS, GPU_BLOCK_TOKENS = 2048, 8192
"""Maximum number of tokens per forward of a long text.

A mask in memory has at most BLOCK_TOKENS x context entries. The larger block needs no mask. Blocks
do not depend on the free memory, because the measured peak memory would depend on it, too.
"""


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
    hidden_BTD, window = hidden_states(lm, patch, ids_BT, None, mask_BT)
    with deltas_applied(lm, patch.deltas, len(ids_BT)):
        return lm.logits(hidden_BTD), window


def prepare_mask(lm: LM, mask_BT: Tensor | None) -> Tensor | None:
    """Convert a padding mask to the form of `Window.feed`.

    Returns a bool mask on the device of the model, or None if no token is padding.
    """
    return None if mask_BT is None or bool(mask_BT.all()) else mask_BT.to(lm.device).bool()


def hidden_states(
    lm: LM, patch: Patch, ids_BT: Tensor, layout: Layout | None, mask_BT: Tensor | None = None
) -> tuple[Tensor, Window]:
    """Run one forward like `forward`, without the head, with tokens placed by `layout`.

    Returns last hidden states [B, T, C] for `lm.logits`, and the window, which continues after the
    last position and sees all real slots. Differentiable.
    """
    patch, mask_BT = encode_patch(lm, patch, len(ids_BT)), prepare_mask(lm, mask_BT)
    if layout is not None and layout.positions_BT is not None:
        positions_BT = layout.positions_BT.to(lm.device)
        if mask_BT is not None:
            positions_BT = positions_BT.masked_fill(~mask_BT, 0)
        check_fits(lm, None, positions_BT.max() + 1)
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
        Eviction is left to the window that reads a query.
    """
    patch = encode_patch(lm, patch)
    rows = max(patch_batch_size(patch), ids_BT.shape[0])
    ids_BT = ids_BT.to(lm.device).expand(rows, -1)
    start_ids = text_start(lm, patch)
    check_fits(
        lm,
        patch.prefix,
        [len(start_ids) + ids_BT.shape[1]] if mask_BT is None else len(start_ids) + mask_BT.sum(1),
    )
    mask_BT = prepare_mask(lm, mask_BT)
    if start_ids:
        ids_BT = torch.cat([ids_BT.new_tensor(start_ids).expand(rows, -1), ids_BT], dim=1)
    if mask_BT is not None:
        mask_BT = pad(mask_BT.expand(rows, -1), (len(start_ids), 0), value=True)
    if lm.server is not None:
        return _append_text(lm, patch.prefix, ids_BT, mask_BT)
    # keys and values fill one buffer in place
    window = Window(lm, patch.prefix, rows, capacity=ids_BT.shape[1], evict=False)
    with deltas_applied(lm, patch.deltas, rows):
        feed_in_blocks(window, ids_BT, mask_BT)
    return replace(window.prefix(), holds_bos=True)


def _append_text(lm: LM, prefix: Prefix | None, ids_BT: Tensor, mask_BT: Tensor | None) -> Prefix:
    """Append ids to a prefix that holds text. `mask_BT` is False for padding."""
    texts = [
        [*before, *new]
        for before, new in zip(
            prefix_texts(prefix, len(ids_BT)), _unpadded(ids_BT, mask_BT), strict=True
        )
    ]
    lengths_B = torch.tensor(list(map(len, texts)), device=lm.device)
    whole_BP = pad_sequence([torch.tensor(ids, dtype=lm.id_dtype) for ids in texts], True)
    whole_BP = whole_BP.to(lm.device)
    is_text_BP = torch.arange(whole_BP.shape[1], device=lm.device) < lengths_B[:, None]
    return Prefix(
        (),
        (),
        lengths_B,
        None if bool(is_text_BP.all()) else is_text_BP,
        holds_bos=True,
        model_cache={TEXT: whole_BP},
    )


def prefix_texts(prefix: Prefix | None, rows: int) -> list[list[int]]:
    """Return the ids of the text in each row of a prefix for a model on a server."""
    if prefix is None:
        return [[]] * rows
    texts = _unpadded(prefix.model_cache[TEXT], prefix.mask_BP)
    return texts * rows if len(texts) == 1 else texts


def _unpadded(ids_BT: Tensor, mask_BT: Tensor | None) -> list[list[int]]:
    """Return the ids of each row without padding."""
    if mask_BT is None:
        return ids_BT.tolist()
    return [ids_T[mask_T].tolist() for ids_T, mask_T in zip(ids_BT, mask_BT, strict=True)]


def feed_in_blocks(window: Window, ids_BT: Tensor, mask_BT: Tensor | None) -> None:
    """Feed a text to a window in blocks, which bound the memory of activations."""
    is_unmasked = mask_BT is None and window.needs_no_mask
    block_size = (
        GPU_BLOCK_TOKENS if window.lm.device.type == "cuda" and is_unmasked else BLOCK_TOKENS
    )
    for begin in range(0, ids_BT.shape[1], block_size):
        block = slice(begin, begin + block_size)
        window.feed(ids_BT[:, block], None if mask_BT is None else mask_BT[:, block])


def encode_patch(lm: LM, patch: Patch, rows: int | None = None) -> Patch:
    """Read the tokens of a patch into its prefix, with its deltas applied.

    Returns an encoded patch, which has only prefix and deltas. An encoded patch is returned
    unchanged. `rows` is the batch size of the patch if it is not 1.
    """
    size = patch_batch_size(patch)
    assert rows is None or size in (1, rows), f"patch of {size} rows on a batch of {rows}"
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
    """Return the number of rows of a patch. Each of its parts has this number of rows, or 1."""
    tensors = [patch.tokens_BT, patch.tokens_mask_BT]
    if patch.prefix is not None:
        tensors += [*patch.prefix.keys_LBHPD[:1], patch.prefix.next_position_B]
    for delta in patch.deltas.values():
        tensors += [delta.a_BRI, delta.b_BOR] if isinstance(delta, LowRank) else []
    sizes = {1, *(len(tensor) for tensor in tensors if tensor is not None)}
    assert len(sizes) <= 2, f"parts of a patch have different rows: {sorted(sizes)}"
    return max(sizes)


def select_rows(patch: Patch, indices: Sequence[int] | Tensor) -> Patch:
    """Select rows of a patch, which may repeat. Shared parts stay shared."""
    if patch_batch_size(patch) == 1:
        return patch
    index_N = torch.as_tensor(indices, dtype=torch.int64)

    def select_delta_rows(delta: Delta) -> Delta:
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
        deltas={name: select_delta_rows(delta) for name, delta in patch.deltas.items()},
    )
