"""Attention functions for transformers: masks by layer, shared prefix, biases, observers.

    past = attend_partial(q, past_k, past_v, scale)
    merge_partials(past, attend_partial(q, k, v, scale, causal=True))[0]  # one softmax over both

Many rows can attend to one shared prefix without copies. On a CPU, parts are computed by torch's
fused kernel, which stores no scores and returns their log-sum-exp. Two partial softmaxes are merged
with their shares of the exponentials as weights (FlashAttention, arXiv 2205.14135, section 3.1;
Hydragen, arXiv 2402.05099, section 3).

Shape letters: B rows · N query heads · H key/value heads · G = N / H · M heads of a bias, N or H ·
    T queries · S slots · P slots all rows share · D head size.
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
"""Scores stored at once without gradients: 4 MiB fit a CPU cache, 256 MiB suit a GPU."""
_fused_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""CPU kernel of `scaled_dot_product_attention`. Called directly, it returns the log-sum-exp too."""


def can_merge_partials(device: torch.device) -> bool:
    """True if attention can be merged from two calls of the fused kernel.

    False with gradients, or if another kernel was selected (`torch.nn.attention.sdpa_kernel`).
    """
    # the flag covers the CPU, too
    flash: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return device.type == "cpu" and flash and not torch.is_grad_enabled()


PartialAttention: TypeAlias = tuple[Tensor, Tensor]
"""Attention to a part of the slots [B, N, T, D], and its log-sum-exp [B, N, T]."""


def attend_partial(
    query_BNTD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    scaling: float,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
) -> PartialAttention:
    """Compute attention to these slots alone.

    Uses the fused kernel if `can_merge_partials`, else stores the scores.

    Args:
        bias: addition to the scores: [B, 1 or N, T, S], or [B, M, S] for all queries of a head.
        causal: each query sees slots up to its own. Needs T = S and the fused kernel.
    """
    rows, count, tokens, size = query_BNTD.shape
    heads, query, key, value = key_BHSD.shape[1], query_BNTD, key_BHSD, value_BHSD
    if tokens == 1 or not (
        causal or (bias is not None and bias.dim() == 4 and tokens >= 2 * heads * size)
    ):
        # query heads of one key/value head become its queries: repeats no keys, at most a mask
        query = query.reshape(rows, heads, -1, size)
        bias = (
            None if bias is None else _expand_bias_to_queries(bias, count // heads, heads, tokens)
        )
    else:
        key, value = (tensor.repeat_interleave(count // heads, dim=1) for tensor in (key, value))
    if can_merge_partials(query.device):
        # The kernel aligns the causal mask [T, S] at the top, so a single token would see one slot.
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
    """Compute attention of scaled queries with stored scores, in steps. Differentiable."""
    step, kind = query_BHXD.shape[2], torch.promote_types(query_BHXD.dtype, torch.float32)
    if not torch.is_grad_enabled():
        scores_per_query = len(query_BHXD) * key_BHSD.shape[1] * key_BHSD.shape[2]
        step = max(1, MAX_SCORES.get(query_BHXD.device.type, 2**26) // scores_per_query)
    outs, totals = [], []
    for begin in range(0, query_BHXD.shape[2], step):
        part = slice(begin, begin + step)
        # float32: if no slot is visible, lowest half-precision number plus score could be -inf
        scores = (query_BHXD[:, :, part] @ key_BHSD.transpose(2, 3)).to(kind)
        if bias is not None:
            scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, part])
        totals.append(scores.logsumexp(-1))
        outs.append((scores - totals[-1][..., None]).exp().to(value_BHSD.dtype) @ value_BHSD)
    return torch.cat(outs, dim=2), torch.cat(totals, dim=2)


def merge_partials(first: PartialAttention, second: PartialAttention) -> PartialAttention:
    """Merge attention to two parts of the slots."""
    # for log sums a and b: exp(b) / (exp(a) + exp(b)) = sigmoid(b - a), without large exponentials
    share_BNT1 = torch.sigmoid(second[1] - first[1])[..., None]
    out_BNTD = torch.lerp(first[0], second[0], share_BNT1.to(second[0].dtype))
    return out_BNTD, torch.logaddexp(first[1], second[1])


def _expand_bias_to_queries(bias: Tensor, groups: int, heads: int, tokens: int) -> Tensor:
    """Reshape a bias [B, M, S] or [B, 1 or N, T, S] to [B, 1 or H, 1 or G T, S]."""
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
    """Compute attention [B, T, N, D] of the last T of S slots: to earlier slots and causally.

    `bias_BMP` is added to the scores of earlier slots, by key/value head or query head.
    """
    before = key_BHSD.shape[2] - query_BNTD.shape[2]
    past = attend_partial(
        query_BNTD, key_BHSD[:, :, :before], value_BHSD[:, :, :before], scaling, bias=bias_BMP
    )
    own = attend_partial(
        query_BNTD, key_BHSD[:, :, before:], value_BHSD[:, :, before:], scaling, causal=True
    )
    return merge_partials(past, own)[0].transpose(1, 2).contiguous()


def attend_shared(
    query_BNTD: Tensor,
    key_BHSD: Tensor,
    value_BHSD: Tensor,
    shared: SharedLayer,
    mask: Tensor | None,
    scaling: float,
) -> Tensor:
    """Compute attention [B, T, N, D] to P shared slots and to S own slots of each row.

    `mask` has the visible slots, shared ones first: bool [B or 1, 1, T, P + S]; None for all.
    """
    rows, count, tokens, size = query_BNTD.shape
    # for the shared slots, the tokens of all rows form one row, [1, N, B T, D]
    query_1NXD = query_BNTD.transpose(0, 1).reshape(1, count, -1, size)
    bias, own_bias = shared.bias, None
    if mask is not None:
        cut = shared.keys.shape[2]
        own_bias = mask_to_bias(mask[..., cut:], query_BNTD.dtype)
        if not shared.is_fully_visible:
            seen_B1TP = mask[..., :cut].expand(rows, -1, -1, -1)
            bias = mask_to_bias(
                seen_B1TP.transpose(0, 1).reshape(1, 1, rows * tokens, -1), query_BNTD.dtype
            )
            if shared.bias is not None:
                heads_1N1P = _expand_bias_to_heads(shared.bias.to(bias), count)
                bias = (bias + heads_1N1P).clamp(min=torch.finfo(bias.dtype).min)
    out, total = attend_partial(query_1NXD, shared.keys, shared.values, scaling, bias=bias)
    shared_part = (
        out.view(count, rows, tokens, size).transpose(0, 1),
        total.view(count, rows, tokens).transpose(0, 1),
    )
    own_part = attend_partial(query_BNTD, key_BHSD, value_BHSD, scaling, bias=own_bias)
    return merge_partials(shared_part, own_part)[0].transpose(1, 2).contiguous()


def mask_to_bias(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bool mask to a bias: 0 for visible slots, else the lowest number of the type."""
    bias_B1TS = torch.zeros_like(mask_B1TS, dtype=dtype)
    return bias_B1TS.masked_fill_(~mask_B1TS, torch.finfo(dtype).min)


ATTENTION_NAME = "ttabench_shared_prefix"
"""Name under which our attention is registered in transformers."""

MaskFunction: TypeAlias = Callable[[int, int, Tensor, Tensor], Tensor]
"""Mask function of transformers: (batch row, head, query position, key position) -> visible."""


@dataclass(frozen=True)
class SharedLayer:
    """Keys and values of one layer that all rows share."""

    keys: Tensor
    """[1, H, P, D]"""
    values: Tensor
    """[1, H, P, D]"""
    is_fully_visible: bool
    """True if every token sees every slot: without padding and sliding window."""
    bias: Tensor | None = None
    """[1, H or N, P], finite: addition to the scores of the slots by head."""


@dataclass(frozen=True)
class AttentionCall:
    """Arguments of the attention of one layer, after rotation of queries and keys. Read-only."""

    layer: int
    """Index of the keys and values in the cache (`Capabilities.kv_layers`)."""
    query: Tensor
    """[B, N, T, D], N query heads."""
    key: Tensor
    """[B, H, S, D]: cached slots, then these T tokens."""
    value: Tensor
    """[B, H, S, D]"""
    mask: Tensor | None
    """bool [B or 1, 1 or H, T, S], True for visible slots. None: all slots up to the own one."""
    scaling: float
    local_mask: MaskFunction | None = None
    """Mask function of a layer with a local window; already applied in `mask`."""
    bias: Tensor | None = None
    """[B or 1, H or N, P]: addition to the scores of the first P slots; the lowest number hides."""
    module: nn.Module | None = None
    """Attention module."""
    is_sharing: bool = False
    """True if the keys and values were made by an earlier layer, which observers saw before."""


@dataclass(frozen=True)
class LearnedLayer:
    """Attention of a decoder layer, as learned from one forward."""

    mask_function: MaskFunction | None
    """None if causal."""
    key: Tensor
    """Keys of the forward: the same object in layers that share keys and values."""


AttentionObserver: TypeAlias = Callable[[AttentionCall], Tensor | None]
"""Observer of attention calls. A returned tensor [B, T, N, D] replaces the result."""


@dataclass(frozen=True, kw_only=True)
class AttentionExtras:
    """Extra attention arguments for all layers of a forward, besides those of transformers."""

    kv_layers: Mapping[int, int] = field(default_factory=dict)
    """Index of the keys and values that a layer attends to; its own number by default."""
    shared: Sequence[SharedLayer] | None = None
    """Shared keys and values before the cache, one entry per layer."""
    bias: Sequence[Tensor] | None = None
    """Addition to the scores of the first P slots: a finite float [B or 1, H or N, P] per layer."""
    continues_unmasked: bool = False
    """True if a text without padding is continued: every token sees all slots up to its own."""
    masks: Sequence[Tensor | None] | None = None
    """Visible slots, bool [B or 1, 1 or H, T, S] per layer, those of `shared` first.

    None, for one or all layers: every token sees all slots up to its own."""
    local_masks: Mapping[int, MaskFunction] = field(default_factory=dict)
    """Mask functions of layers with a local window, for observers that create their own masks."""
    watcher: AttentionObserver | None = None
    """Observer of every call."""
    learned_layers: dict[int, LearnedLayer] | None = None
    """While layers are learned: what is known of each decoder layer that attends."""


_attention_extras: ContextVar[AttentionExtras] = ContextVar(
    "attention",
    default=AttentionExtras(),  # noqa: B039  # immutable
)


@contextmanager
def attention_extras(**changes: Any) -> Iterator[None]:
    """Change fields of the `AttentionExtras` for forwards in the block."""
    token = _attention_extras.set(replace(_attention_extras.get(), **changes))
    try:
        yield
    finally:
        _attention_extras.reset(token)


def observe_attention(watcher: AttentionObserver | None) -> AbstractContextManager[None]:
    """Pass the attention calls of forwards in the block to an observer."""
    return attention_extras(watcher=watcher)


def is_observed() -> bool:
    """True if an observer is set. New windows then keep their prefix visible to it."""
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
    """Compute attention [B, T, N, D] of query [B, N, T, D] to key and value [B, H, S, D].

    The signature is that of transformers.
    """
    # Cases in order: result of an observer; continued text, in two parts; sdpa of transformers,
    # with bias or causal mask if needed; shared prefix and own slots of a row, in two parts.
    extras = _attention_extras.get()
    call = _make_call(module, (query, key, value), attention_mask, extras, options.get("scaling"))
    mask, scaling, bias = call.mask, call.scaling, call.bias
    if extras.watcher is not None:
        assert extras.shared is None, "observers do not support a shared prefix"
        replacement = extras.watcher(call)
        if replacement is not None:
            return replacement.contiguous(), None  # as transformers promises its models
    assert bias is None or extras.shared is None, "a shared prefix has its own bias"
    # A single new token (T = 1) sees all slots and needs no mask. Without cached slots (S = T),
    # attention is causal.
    continues_unmasked = (
        extras.continues_unmasked and mask is None and 1 < query.shape[2] < key.shape[2]
    )
    if continues_unmasked and can_merge_partials(query.device):
        past = None if bias is None else pad_bias(bias, key.shape[2] - query.shape[2])
        return attend_continuation(query, key, value, scaling, past), None
    if mask is not None and mask.shape[1] > 1:  # repeat masks of key/value heads for query heads
        mask = mask.repeat_interleave(query.shape[1] // mask.shape[1], dim=1)
    if bias is not None:
        # bool [B, 1, T, S] or None to float [B, N, T, S]
        mask = _bias_with_mask(bias, query, key, mask)
    elif continues_unmasked:
        # flash kernels support it without a stored mask
        mask = causal_lower_right(query.shape[2], key.shape[2])
        # sdpa_attention_forward would repeat the keys for query heads
        if query.dtype != torch.float32:
            out = scaled_dot_product_attention(
                query, key, value, mask, dropout, scale=scaling, enable_gqa=True
            )
            return out.transpose(1, 2).contiguous(), None
    shared = None if extras.shared is None else extras.shared[call.layer]
    if shared is None or not shared.keys.shape[2]:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, **options
        )
        return whole
    return attend_shared(query, key, value, shared, mask, scaling), None


def _make_call(
    module: nn.Module,
    parts: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    extras: AttentionExtras,
    scaling: float | None,
) -> AttentionCall:
    """Collect the arguments of one layer, with the mask of its window or of transformers."""
    number = module.layer_idx
    assert isinstance(number, int), "attention modules need a layer_idx"
    layer = extras.kv_layers.get(number, number)
    if extras.learned_layers is not None:
        assert number not in extras.learned_layers, f"layer {number} attends twice"
        function = causal_mask_function if mask is None else _mask_functions[mask.shape[1] - 1]
        extras.learned_layers[number] = LearnedLayer(
            None if function is causal_mask_function else function, parts[1]
        )
        mask = None
    elif extras.masks is not None:
        assert mask is None, f"layer {layer} of {type(module).__name__} has its own mask"
        mask = extras.masks[layer]
        mask = mask if mask is None else mask.to(parts[0].device)
    scaling = parts[0].shape[-1] ** -0.5 if scaling is None else float(scaling)
    bias = None if extras.bias is None else extras.bias[layer]
    owner = next((first for first, index in extras.kv_layers.items() if index == layer), number)
    local_mask = extras.local_masks.get(layer)
    return AttentionCall(layer, *parts, mask, scaling, local_mask, bias, module, owner != number)


@contextmanager
def learn_layers() -> Iterator[dict[int, LearnedLayer]]:
    """Learn mask function and keys of each attention layer from one forward in the block.

    The number of mask heads identifies the function: models change masks, but not their heads.
    """
    _mask_functions.clear()
    with attention_extras(learned_layers={}):
        learned_layers = _attention_extras.get().learned_layers
        assert learned_layers is not None
        yield learned_layers


_mask_functions: list[MaskFunction] = []


def pad_bias(bias_BMP: Tensor, slots: int) -> Tensor:
    """Extend or cut a bias to `slots` slots. New slots have a bias of 0."""
    more = slots - bias_BMP.shape[2]
    return pad(bias_BMP, (0, more)) if more > 0 else bias_BMP[..., :slots]


def _bias_with_mask(bias_BMP: Tensor, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Combine bias and mask to [B, N, T, S]: hidden slots have the lowest number of the type."""
    if mask is None:  # with a bias, sdpa creates no causal mask
        mask = causal_mask(query.shape[2], key.shape[2], key.device)
    bias_BMS = pad_bias(bias_BMP.to(query.dtype), key.shape[2])
    bias_BN1S = _expand_bias_to_heads(bias_BMS, query.shape[1])
    mask = mask.expand(len(query), -1, -1, -1)
    return torch.where(mask, bias_BN1S, torch.finfo(query.dtype).min)


def _expand_bias_to_heads(bias_BMP: Tensor, heads: int) -> Tensor:
    """Expand a bias to all query heads and tokens, [B, N, 1, P]."""
    return bias_BMP.repeat_interleave(heads // bias_BMP.shape[1], dim=1)[:, :, None]


def causal_mask(tokens: int, slots: int, device: torch.device) -> Tensor:
    """Create a causal mask, bool [1, 1, T, S], for the last T of S slots."""
    return torch.ones(1, 1, tokens, slots, dtype=torch.bool, device=device).tril(slots - tokens)


def _make_mask(*, mask_function: MaskFunction, **options: Any) -> Tensor | None:
    """Create a mask for transformers; None if a window provides one.

    While masks are learned, the number of heads of the mask identifies its function.
    """
    extras = _attention_extras.get()
    if extras.learned_layers is None:
        made: Tensor | None = (
            None if extras.masks is not None else sdpa_mask(mask_function=mask_function, **options)
        )
        return made
    _mask_functions.append(mask_function)
    shape = 1, len(_mask_functions), options["q_length"], options["kv_length"]
    return torch.ones(shape, dtype=torch.bool, device=options.get("device"))


AttentionInterface.register(ATTENTION_NAME, forward)
AttentionMaskInterface.register(ATTENTION_NAME, _make_mask)
