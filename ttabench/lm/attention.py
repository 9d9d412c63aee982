"""Attention as transformers calls it, with what a window adds: masks by layer, a shared prefix, biases, watchers.

    merge_partials(summed(q, past_k, past_v, scale), summed(q, k, v, scale, causal=True))     one softmax over both

Many rows attend to one shared prefix without a copy for each. On a CPU parts come of torch's fused kernel, which writes
no scores and tells their sum. Two softmaxes are one when each is weighed by its share of the exponentials
(FlashAttention, arXiv 2205.14135, section 3.1; Hydragen, arXiv 2402.05099, section 3).

Shape letters: B rows · N query heads · H key/value heads · G = N / H · M heads of a bias, N or H · T queries ·
    S slots · P slots all rows share · D head size.
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

MAX_SCORES = {"cpu": 2**20, "cuda": 2**26}
"""Scores written at a time without gradients. 4 MiB stay in a CPU's cache; a GPU wants few large products: 256 MiB."""
_fused_kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""The kernel that `scaled_dot_product_attention` calls on a CPU; asked by name, it gives the log-sum-exp too."""


def can_merge_partials(device: torch.device) -> bool:
    """Whether attention can be put together from two calls of the fused kernel.

    Not under gradients, and not where somebody asked for another kernel (`torch.nn.attention.sdpa_kernel`).
    """
    flash: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]  # for a CPU, too
    return (
        _fused_kernel is not None and device.type == "cpu" and flash and not torch.is_grad_enabled()
    )


PartialAttention: TypeAlias = tuple[Tensor, Tensor]
"""Attention to some of the slots [B, N, T, D], and the log of the sum of its exponentials [B, N, T]."""


def attend_partial(
    query_BNTD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    scaling: float,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
) -> PartialAttention:
    """Attention to these slots alone: by the fused kernel where `in_two_parts` allows it, else over written scores.

    Args:
        bias: is added to the scores: [B, 1 or N, T, S], or [B, M, S] of all queries of a head.
        causal: of as many slots as queries, each query sees those up to its own; of the fused kernel.
    """
    rows, count, tokens, size = query_BNTD.shape
    heads, query, key, value = key_BHSD.shape[1], query_BNTD, key_BHSD, value_BHSD
    if tokens == 1 or not (
        causal or (bias is not None and bias.dim() == 4 and tokens >= 2 * heads * size)
    ):
        # the query heads of one key/value head are queries of it: nothing is repeated but a mask, where that is less
        query = query.reshape(rows, heads, -1, size)
        bias = (
            None if bias is None else _expand_bias_to_queries(bias, count // heads, heads, tokens)
        )
    else:
        key, value = (tensor.repeat_interleave(count // heads, dim=1) for tensor in (key, value))
    if _fused_kernel is not None and can_merge_partials(query.device):
        # a single token sees every slot; causal, it would see the first alone: the kernel aligns [T, S] at the top
        out, total = _fused_kernel(
            query, key, value, attn_mask=bias, is_causal=causal and tokens > 1, scale=scaling
        )
    else:
        assert not causal, "causal attention is the fused kernel's"
        out, total = _attend_with_scores(query * scaling, key, value, bias)
    return out.reshape(query_BNTD.shape), total.reshape(query_BNTD.shape[:3])


def _attend_with_scores(
    query_BHXD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, bias: Tensor | None
) -> PartialAttention:
    """Attention of scaled queries over scores in memory, differentiable; so many queries at a time."""
    step, kind = query_BHXD.shape[2], torch.promote_types(query_BHXD.dtype, torch.float32)
    if not torch.is_grad_enabled():
        scores_a_query = len(query_BHXD) * key_BHSD.shape[1] * key_BHSD.shape[2]
        step = max(1, MAX_SCORES.get(query_BHXD.device.type, 2**26) // scores_a_query)
    outs, totals = [], []
    for begin in range(0, query_BHXD.shape[2], step):
        part = slice(begin, begin + step)
        # where a token sees no slot, the lowest number of half precision and a score would together be minus infinity
        scores = (query_BHXD[:, :, part] @ key_BHSD.transpose(2, 3)).to(kind)
        if bias is not None:
            scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, part])
        totals.append(scores.logsumexp(-1))
        outs.append((scores - totals[-1][..., None]).exp().to(value_BHSD.dtype) @ value_BHSD)
    return torch.cat(outs, dim=2), torch.cat(totals, dim=2)


def merge_partials(first: PartialAttention, second: PartialAttention) -> Tensor:
    """Attention [B, N, T, D] to the slots of both parts."""
    # exp(b) / (exp(a) + exp(b)) = sigmoid(b - a), of the logs of sums a and b: never a large exponential
    share_BNT1 = torch.sigmoid(second[1] - first[1])[..., None]
    return torch.lerp(first[0], second[0], share_BNT1.to(second[0].dtype))


def _expand_bias_to_queries(bias: Tensor, groups: int, heads: int, tokens: int) -> Tensor:
    """A bias [B, M, S] or [B, 1 or N, T, S] for the queries of key/value heads: [B, 1 or H, 1 or G T, S]."""
    if bias.dim() == 3:
        bias = bias[:, :, None]
        if bias.shape[1] == heads:
            return bias
        bias = bias.expand(-1, -1, tokens, -1)
    return (
        bias.repeat(1, 1, groups, 1)
        if bias.shape[1] == 1
        else bias.reshape(len(bias), heads, -1, bias.shape[3])
    )


def attend_continuation(
    query_BNTD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    scaling: float,
    bias_BMP: Tensor | None = None,
) -> Tensor:
    """The last T of S slots attend to the slots before them, and causally to each other; gives [B, T, N, D].

    `bias_BMP` is added to the scores of the slots before them, by key/value head or by query head.
    """
    before = key_BHSD.shape[2] - query_BNTD.shape[2]
    past = attend_partial(
        query_BNTD, key_BHSD[:, :, :before], value_BHSD[:, :, :before], scaling, bias=bias_BMP
    )
    own = attend_partial(
        query_BNTD, key_BHSD[:, :, before:], value_BHSD[:, :, before:], scaling, causal=True
    )
    return merge_partials(past, own).transpose(1, 2)


def attend_shared(
    query_BNTD: Tensor,
    own: tuple[Tensor, Tensor],
    shared: tuple[Tensor, Tensor],
    masks: tuple[Tensor | None, Tensor | None],
    scaling: float,
    bias_1MP: Tensor | None = None,
) -> Tensor:
    """Attention to slots all rows share [1, H, P, D] and to each row's own; gives [B, T, N, D].

    Args:
        masks: bool [B or 1, 1, T, P] and [B or 1, 1, T, S], which shared and own slots a token sees; None: all.
        bias_1MP: is added to the scores of the shared slots.
    """
    rows, count, tokens, size = query_BNTD.shape
    # to the shared slots the tokens of all rows are queries of one row, [1, N, B T, D]
    query_1NXD = query_BNTD.transpose(0, 1).reshape(1, count, -1, size)
    bias, own_bias = (
        bias_1MP,
        None if masks[1] is None else mask_to_bias(masks[1], query_BNTD.dtype),
    )
    if masks[0] is not None:
        seen_B1TP = masks[0].expand(rows, -1, -1, -1)
        bias = mask_to_bias(
            seen_B1TP.transpose(0, 1).reshape(1, 1, rows * tokens, -1), query_BNTD.dtype
        )
        if bias_1MP is not None:
            heads_1N1P = bias_1MP.to(bias).repeat_interleave(count // bias_1MP.shape[1], dim=1)[
                :, :, None
            ]
            bias = torch.maximum(bias + heads_1N1P, bias.new_tensor(torch.finfo(bias.dtype).min))
    out, total = attend_partial(query_1NXD, *shared, scaling, bias=bias)
    theirs = (
        out.view(count, rows, tokens, size).transpose(0, 1),
        total.view(count, rows, tokens).transpose(0, 1),
    )
    return merge_partials(
        theirs, attend_partial(query_BNTD, *own, scaling, bias=own_bias)
    ).transpose(1, 2)


def mask_to_bias(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers added to scores: 0 where a token sees a slot, else the lowest number of the type."""
    bias_B1TS = torch.zeros_like(mask_B1TS, dtype=dtype)
    return bias_B1TS.masked_fill_(~mask_B1TS, torch.finfo(dtype).min)


ATTENTION_NAME = "ttabench_shared_prefix"
"""Our attention's name with transformers."""

MaskFunction: TypeAlias = Callable[[int, int, Tensor, Tensor], Tensor]
"""A mask of transformers: (batch row, head, position of the query, position of the key) to whether it is seen."""


@dataclass(frozen=True)
class SharedLayer:
    """The keys and values of one layer that all rows share."""

    keys: Tensor
    """[1, H, P, D]"""
    values: Tensor
    """[1, H, P, D]"""
    is_fully_visible: bool
    """Whether every token sees every slot: no padding in the prefix, no sliding window."""
    bias: Tensor | None = None
    """[1, H or N, P], finite: what is added to the scores of the slots, head by head."""


@dataclass(frozen=True)
class AttentionCall:
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
    local_mask: MaskFunction | None = None
    """What the layer hides of what is far away, by positions; already in the mask."""
    bias: Tensor | None = None
    """[B or 1, H or N, P]: what is added to the scores of the first P slots; the lowest number hides one."""
    module: nn.Module | None = None
    """The attention that was called."""


AttentionObserver: TypeAlias = Callable[[AttentionCall], Tensor | None]
"""Sees a call; None leaves attention as it is, a tensor [B, T, N, D] is its result instead."""


@dataclass(frozen=True, kw_only=True)
class AttentionExtras:
    """Extra arguments of attention, for all layers of a forward, beside those that transformers passes."""

    shared: Sequence[SharedLayer] | None = None
    """Keys and values that all rows see in front of what their cache returns, one entry a layer."""
    bias: Sequence[Tensor] | None = None
    """What is added to scores: a finite float [B or 1, H or N, P] a layer, of the first P slots; the others get
    nothing."""
    continues_unmasked: bool = False
    """A text is read on: every token sees all that stands before it, and there is no padding."""
    masks: Sequence[Tensor | None] | None = None
    """What each token sees, bool [B or 1, 1 or H, T, S] a layer, with the slots of `shared` in front; None, of all
    layers or of one: every token sees all slots up to its own."""
    local_masks: Mapping[int, MaskFunction] = field(default_factory=dict)
    """The mask functions of layers that hide what is far away, for watchers that make masks of their own."""
    watcher: AttentionObserver | None = None
    """Sees every call, see `Watcher`."""
    learned_masks: dict[int, MaskFunction | None] | None = None
    """While it is learned what layers hide: filled with the mask function of every layer, None where it is causal."""


_attention_extras: ContextVar[AttentionExtras] = ContextVar("attention", default=AttentionExtras())  # noqa: B039  # nothing in it changes


@contextmanager
def attention_extras(**changes: Any) -> Iterator[None]:
    """Change the extras of forwards in the block; fields of `Extras`, the others stay."""
    token = _attention_extras.set(replace(_attention_extras.get(), **changes))
    try:
        yield
    finally:
        _attention_extras.reset(token)


def observe_attention(watcher: AttentionObserver | None) -> AbstractContextManager[None]:
    """Show the attention calls of forwards in the block to a watcher."""
    return attention_extras(watcher=watcher)


def is_observed() -> bool:
    """Whether a watcher is set; windows made now keep their prefix where watchers see it."""
    return _attention_extras.get().watcher is not None


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
    extras = _attention_extras.get()
    call = _make_call(module, (query, key, value), attention_mask, extras, options.get("scaling"))
    mask, scaling, bias = call.mask, call.scaling, call.bias
    if extras.watcher is not None:
        assert extras.shared is None, "a shared prefix is not shown to watchers"
        answered = extras.watcher(call)
        if answered is not None:
            return answered, None
    assert bias is None or extras.shared is None, "the bias of a shared prefix is its own"
    # A single new token (T = 1) sees all slots: sdpa needs no mask for it. Where nothing is held (S = T) it is causal.
    continues_unmasked = (
        extras.continues_unmasked and mask is None and 1 < query.shape[2] < key.shape[2]
    )
    if continues_unmasked and can_merge_partials(query.device):
        past = None if bias is None else pad_bias(bias, key.shape[2] - query.shape[2])
        return attend_continuation(query, key, value, scaling, past), None
    if mask is not None and mask.shape[1] > 1:  # of key/value heads, for the query heads of each
        mask = mask.repeat_interleave(query.shape[1] // mask.shape[1], dim=1)
    if bias is not None:
        mask = _bias_with_mask(
            bias, query, key, mask
        )  # bool [B, 1, T, S] or None to float [B, N, T, S]
    elif continues_unmasked:
        mask = causal_lower_right(
            query.shape[2], key.shape[2]
        )  # flash kernels know it, and no mask is written
        if (
            query.dtype != torch.float32
        ):  # nor keys repeated for query heads, which sdpa_attention_forward would do
            out = scaled_dot_product_attention(
                query, key, value, mask, dropout, scale=scaling, enable_gqa=True
            )
            return out.transpose(1, 2), None
    shared = None if extras.shared is None else extras.shared[call.layer]
    if shared is None or not shared.keys.shape[2]:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, **options
        )
        return whole
    # the mask is of P shared and S own slots
    cut = shared.keys.shape[2]
    parts = (
        (None, None)
        if mask is None
        else (None if shared.is_fully_visible else mask[..., :cut], mask[..., cut:])
    )
    lent = (shared.keys, shared.values)
    return attend_shared(query, (key, value), lent, parts, scaling, shared.bias), None


def _make_call(
    module: nn.Module,
    parts: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    extras: AttentionExtras,
    scaling: float | None,
) -> AttentionCall:
    """The arguments of one layer, with the mask of its window, or of transformers where no window made one."""
    layer = module.layer_idx
    assert isinstance(layer, int), "attention modules of transformers know their layer"
    if extras.learned_masks is not None:
        assert layer not in extras.learned_masks, f"layer {layer} attends twice"
        function = causal_mask_function if mask is None else _mask_functions[mask.shape[1] - 1]
        extras.learned_masks[layer], mask = (
            None if function is causal_mask_function else function,
            None,
        )
    elif extras.masks is not None:
        assert mask is None, f"layer {layer} of {type(module).__name__} brings a mask of its own"
        mask = extras.masks[layer]
        mask = mask if mask is None else mask.to(parts[0].device)
    scaling = parts[0].shape[-1] ** -0.5 if scaling is None else float(scaling)
    bias = None if extras.bias is None else extras.bias[layer]
    return AttentionCall(
        layer, *parts, mask, scaling, extras.local_masks.get(layer), bias, module=module
    )


@contextmanager
def learn_mask_functions() -> Iterator[dict[int, MaskFunction | None]]:
    """Learn in the forwards of the block which mask function each layer has; None where it is plainly causal.

    A function is told from others by the number of heads that its mask has, which survives all that models do to masks.
    """
    _mask_functions.clear()
    with attention_extras(learned_masks={}):
        learned_masks = _attention_extras.get().learned_masks
        assert learned_masks is not None
        yield learned_masks


_mask_functions: list[MaskFunction] = []


def pad_bias(bias_BMP: Tensor, slots: int) -> Tensor:
    """A bias of the first slots for so many: nothing is added to those behind."""
    more = slots - bias_BMP.shape[2]
    return pad(bias_BMP, (0, more)) if more > 0 else bias_BMP[..., :slots]


def _bias_with_mask(bias_BMP: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """What is added to scores [B, N, T, S]: the bias of the first P slots, and the lowest number where nothing is
    seen."""
    if mask is None:  # once there is a bias, sdpa makes no causal mask of its own
        mask = causal_mask(query.shape[2], key.shape[2], key.device)
    bias_BMS = pad_bias(bias_BMP.to(query.dtype), key.shape[2])
    bias_BNTS = bias_BMS.repeat_interleave(query.shape[1] // bias_BMP.shape[1], dim=1)[:, :, None]
    mask = mask.expand(len(query), -1, -1, -1)
    return torch.where(mask, bias_BNTS, torch.finfo(query.dtype).min)


def causal_mask(tokens: int, slots: int, device: torch.device) -> Tensor:
    """bool [1, 1, T, S]: the last T of S slots see those up to their own."""
    return torch.ones(1, 1, tokens, slots, dtype=torch.bool, device=device).tril(slots - tokens)


def _make_mask(*, mask_function: MaskFunction, **options: Any) -> Tensor | None:
    """No mask where a window brings its own, else transformers'; while masks are learned, one that says whose it is."""
    extras = _attention_extras.get()
    if extras.learned_masks is None:
        made: Tensor | None = (
            None if extras.masks is not None else sdpa_mask(mask_function=mask_function, **options)
        )
        return made
    _mask_functions.append(mask_function)
    shape = 1, len(_mask_functions), options["q_length"], options["kv_length"]
    return torch.ones(shape, dtype=torch.bool, device=options.get("device"))


AttentionInterface.register(ATTENTION_NAME, forward)
AttentionMaskInterface.register(ATTENTION_NAME, _make_mask)
