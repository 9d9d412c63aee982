"""Attention as transformers calls it, with what a window adds: masks by layer, a shared prefix, biases, watchers.

Many rows attend to one shared prefix without a copy for each (Hydragen, arXiv 2402.05099, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from ttabench.lm.attention.fused import attend_continuation, attend_shared, in_two_parts

NAME = "ttabench_shared_prefix"
"""Our attention's name with transformers."""

MaskFunction: TypeAlias = Callable[[int, int, Tensor, Tensor], Tensor]
"""A mask of transformers: (batch row, head, position of the query, position of the key) to whether it is seen."""


@dataclass(frozen=True)
class Shared:
    """The keys and values of one layer that all rows share."""

    keys: Tensor
    """[1, H, P, D]"""
    values: Tensor
    """[1, H, P, D]"""
    all_seen: bool
    """Whether every token sees every slot: no padding in the prefix, no sliding window."""
    bias: Tensor | None = None
    """[1, H or N, P], finite: what is added to the scores of the slots, head by head."""


@dataclass(frozen=True)
class Call:
    """The arguments of one layer's attention, after any rotation of queries and keys; they must not be changed."""

    layer: int
    query: Tensor
    """[B, N, T, D], N query heads."""
    key: Tensor
    """[B, H, S, D]: what the cache held, then these T tokens."""
    value: Tensor
    """[B, H, S, D]"""
    mask: Tensor | None
    """bool [B or 1, 1 or H, T, S], true where a token sees a slot; None: every token sees all slots up to its own."""
    scaling: float
    near: MaskFunction | None = None
    """What the layer hides of what is far away, by positions; already in the mask."""
    bias: Tensor | None = None
    """[B or 1, H or N, P]: what is added to the scores of the first P slots; the lowest number hides one."""
    module: nn.Module | None = None
    """The attention that was called."""


Watcher: TypeAlias = Callable[[Call], Tensor | None]
"""Sees a call; None leaves attention as it is, a tensor [B, T, N, D] is its result instead."""


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Extra arguments of attention, for all layers of a forward, beside those that transformers passes."""

    shared: Sequence[Shared] | None = None
    """Keys and values that all rows see in front of what their cache returns, one entry a layer."""
    bias: Sequence[Tensor] | None = None
    """What is added to scores: a finite float [B or 1, H or N, P] a layer, of the first P slots; the others get
    nothing."""
    reads_on: bool = False
    """A text is read on: every token sees all that stands before it, and there is no padding."""
    masks: Sequence[Tensor | None] | None = None
    """What each token sees, bool [B or 1, 1 or H, T, S] a layer, with the slots of `shared` in front; None, of all
    layers or of one: every token sees all slots up to its own."""
    local: Mapping[int, MaskFunction] = field(default_factory=dict)
    """The mask functions of layers that hide what is far away, for watchers that make masks of their own."""
    watcher: Watcher | None = None
    """Sees every call, see `Watcher`."""
    learned: dict[int, MaskFunction | None] | None = None
    """While it is learned what layers hide: filled with the mask function of every layer, None where it is causal."""


_extras: ContextVar[Extras] = ContextVar("attention", default=Extras())  # noqa: B039  # nothing in it changes


@contextmanager
def given(**changes: Any) -> Iterator[None]:
    """Change the extras of forwards in the block; fields of `Extras`, the others stay."""
    token = _extras.set(replace(_extras.get(), **changes))
    try:
        yield
    finally:
        _extras.reset(token)


def watched(watcher: Watcher | None) -> AbstractContextManager[None]:
    """Show the attention calls of forwards in the block to a watcher."""
    return given(watcher=watcher)


def is_watched() -> bool:
    """Whether a watcher is set; windows made now keep their prefix where watchers see it."""
    return _extras.get().watcher is not None


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,  # by position where kvpress has wrapped all attention functions
    **options: Any,  # the interface of transformers: scaling, is_causal, sliding_window ...
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query [B, N, T, D] to key and value [B, H, S, D]; gives [B, T, N, D]."""
    # Four ways out, in this order: a watcher's own answer; a text read on, in two parts; transformers' sdpa, with a
    # bias, or told that a text is read on, or neither; a shared prefix and a row's own slots, in two parts.
    extras = _extras.get()
    call = _call(module, (query, key, value), attention_mask, extras, options.get("scaling"))
    mask, scaling, bias = call.mask, call.scaling, call.bias
    if extras.watcher is not None:
        assert extras.shared is None, "a shared prefix is not shown to watchers"
        answered = extras.watcher(call)
        if answered is not None:
            return answered, None
    assert bias is None or extras.shared is None, "the bias of a shared prefix is its own"
    # A single new token (T = 1) sees all slots: sdpa needs no mask for it. Where nothing is held (S = T) it is causal.
    reads_on = extras.reads_on and mask is None and 1 < query.shape[2] < key.shape[2]
    if reads_on and in_two_parts(query.device):
        past = None if bias is None else widened(bias, key.shape[2] - query.shape[2])
        return attend_continuation(query, key, value, scaling, past), None
    mask = mask if mask is None else _of_query_heads(mask, query)
    if bias is not None:
        mask = _biased(bias, query, key, mask)  # bool [B, 1, T, S] or None to float [B, N, T, S]
    elif reads_on:
        mask = causal_lower_right(query.shape[2], key.shape[2])  # flash kernels know it, and no mask is written
        if query.dtype != torch.float32:  # nor keys repeated for query heads, which sdpa_attention_forward would do
            out = scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling, enable_gqa=True)
            return out.transpose(1, 2), None
    shared = None if extras.shared is None else extras.shared[call.layer]
    if shared is None or not shared.keys.shape[2]:
        whole: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, **options)
        return whole
    # the mask is of P shared and S own slots
    cut = shared.keys.shape[2]
    parts = (None, None) if mask is None else (None if shared.all_seen else mask[..., :cut], mask[..., cut:])
    lent = (shared.keys, shared.values)
    return attend_shared(query, (key, value), lent, parts, scaling, shared.bias), None


def _call(
    module: nn.Module, parts: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, extras: Extras, scaling: float | None
) -> Call:
    """The arguments of one layer, with the mask of its window, or of transformers where no window made one."""
    layer = module.layer_idx
    assert isinstance(layer, int), "attention modules of transformers know their layer"
    if extras.learned is not None:
        assert layer not in extras.learned, f"layer {layer} attends twice"
        function = causal_mask_function if mask is None else _functions[mask.shape[1] - 1]
        extras.learned[layer], mask = None if function is causal_mask_function else function, None
    elif extras.masks is not None:
        assert mask is None, f"layer {layer} of {type(module).__name__} brings a mask of its own"
        mask = extras.masks[layer]
        mask = mask if mask is None else mask.to(parts[0].device)
    scaling = parts[0].shape[-1] ** -0.5 if scaling is None else float(scaling)
    bias = None if extras.bias is None else extras.bias[layer]
    return Call(layer, *parts, mask, scaling, extras.local.get(layer), bias, module=module)


def _of_query_heads(mask: Tensor, query: Tensor) -> Tensor:
    """A mask of key/value heads as one of query heads; one of all heads stays as it is."""
    return mask if mask.shape[1] == 1 else mask.repeat_interleave(query.shape[1] // mask.shape[1], dim=1)


@contextmanager
def learning_masks() -> Iterator[dict[int, MaskFunction | None]]:
    """Learn in the forwards of the block which mask function each layer has; None where it is plainly causal.

    A function is told from others by the number of heads that its mask has, which survives all that models do to masks.
    """
    _functions.clear()
    with given(learned={}):
        learned = _extras.get().learned
        assert learned is not None
        yield learned


_functions: list[MaskFunction] = []


def widened(bias_BMP: Tensor, slots: int) -> Tensor:
    """A bias of the first slots for so many: nothing is added to those behind."""
    more = slots - bias_BMP.shape[2]
    return pad(bias_BMP, (0, more)) if more > 0 else bias_BMP[..., :slots]


def _biased(bias_BMP: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """What is added to scores [B, N, T, S]: the bias of the first P slots, and the lowest number where nothing is
    seen."""
    mask = _causal(query, key) if mask is None else mask  # once there is a bias, sdpa makes no causal mask of its own
    bias_BMS = widened(bias_BMP.to(query.dtype), key.shape[2])
    bias_BNTS = bias_BMS.repeat_interleave(query.shape[1] // bias_BMP.shape[1], dim=1)[:, :, None]
    mask = mask.expand(len(query), -1, -1, -1)
    return torch.where(mask, bias_BNTS, torch.finfo(query.dtype).min)


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """bool [1, 1, T, S]: the last T of S slots see those up to their own."""
    tokens, slots = query.shape[2], key.shape[2]
    return torch.ones(1, 1, tokens, slots, dtype=torch.bool, device=key.device).tril(slots - tokens)


def _mask(*, mask_function: MaskFunction, **options: Any) -> Tensor | None:
    """No mask where a window brings its own, else transformers'; while masks are learned, one that says whose it is."""
    extras = _extras.get()
    if extras.learned is None:
        made: Tensor | None = None if extras.masks is not None else sdpa_mask(mask_function=mask_function, **options)
        return made
    _functions.append(mask_function)
    shape = 1, len(_functions), options["q_length"], options["kv_length"]
    return torch.ones(shape, dtype=torch.bool, device=options.get("device"))


AttentionInterface.register(NAME, forward)
AttentionMaskInterface.register(NAME, _mask)
