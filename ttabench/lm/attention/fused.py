"""Attention put together from parts, on a CPU: torch's fused kernel never writes scores to memory and tells their sum.

    merge_partials(summed(q, past_k, past_v, scale), summed(q, k, v, scale, causal=True))     one softmax over both

Two softmaxes are one when each is weighed by its share of the exponentials (FlashAttention, arXiv 2205.14135, section
3.1; Hydragen, arXiv 2402.05099, section 3).

Shape letters: B rows · N query heads · H key/value heads · G = N / H · T queries · X queries of any rows · S slots ·
    P slots all rows share · D head size.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

_fused = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""The kernel that `scaled_dot_product_attention` calls on a CPU; asked by name, it gives the log-sum-exp too."""


def in_two_parts(device: torch.device) -> bool:
    """Whether attention can be put together from two calls of the fused kernel.

    Not under gradients, and not where somebody asked for another kernel (`torch.nn.attention.sdpa_kernel`).
    """
    flash: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]  # for a CPU, too
    return _fused is not None and device.type == "cpu" and flash and not torch.is_grad_enabled()


Part: TypeAlias = tuple[Tensor, Tensor]
"""Attention to some of the slots [B, N, T, D], and the log of the sum of its exponentials [B, N, T]; or of [X, N]."""


def summed(
    query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float, *, bias: Tensor | None = None,
    causal: bool = False,
) -> Part:  # fmt: skip
    """Attention to these slots alone, where `in_two_parts` allows it; `bias` [B, 1, T, S] is added to the scores."""
    assert _fused is not None
    rows, count, tokens, size = query_BNTD.shape
    heads, query, key, value = key_BHSD.shape[1], query_BNTD, key_BHSD, value_BHSD
    if tokens == 1:  # the query heads of one key/value head are queries of it: nothing is repeated
        query = query.reshape(rows, heads, -1, size)
    else:
        key, value = (tensor.repeat_interleave(count // heads, dim=1) for tensor in (key, value))
    # a single token sees every slot: causal would let it see the first alone, for the kernel aligns [T, S] at the top
    out, total = _fused(query, key, value, attn_mask=bias, is_causal=causal and tokens > 1, scale=scaling)
    return out.reshape(query_BNTD.shape), total.reshape(query_BNTD.shape[:3])


def across(
    query_XND: Tensor, key_1HPD: Tensor, value_1HPD: Tensor, scaling: float, bias_1MP: Tensor | None = None
) -> Part:
    """Attention [X, N, D] of tokens of any rows to slots all rows share, and the log of its sums [X, N].

    `bias_1MP` is added to the scores of the slots, by key/value head or by query head.
    """
    assert _fused is not None
    tokens, count, size = query_XND.shape
    heads = key_1HPD.shape[1]
    # [X, N, D] as [1, H, X G, D]: tokens of all rows and query heads are queries of one batch row, no key is repeated
    query_HXGD = query_XND.view(tokens, heads, -1, size).transpose(0, 1)
    bias = None if bias_1MP is None else of_queries(bias_1MP, heads, tokens, together=True)
    query = query_HXGD.reshape(1, heads, -1, size)
    out, total = _fused(query, key_1HPD, value_1HPD, attn_mask=bias, scale=scaling)
    out_XHGD, total_XHG = (tensor.view(heads, tokens, -1, *tensor.shape[3:]).transpose(0, 1) for tensor in (out, total))
    return out_XHGD.reshape(query_XND.shape), total_XHG.reshape(tokens, count)


def merge_partials(first: Part, second: Part) -> Tensor:
    """Attention to the slots of both parts, [B, N, T, D] or [X, N, D]."""
    # exp(b) / (exp(a) + exp(b)) = sigmoid(b - a), of the logs of sums a and b: never a large exponential
    share_BNT1 = torch.sigmoid(second[1] - first[1])[..., None]
    return torch.lerp(first[0], second[0], share_BNT1.to(second[0].dtype))


def of_queries(bias_BMP: Tensor, heads: int, tokens: int, *, together: bool = False) -> Tensor:
    """A bias by head for queries of key/value heads: [B, H, 1, P], or [B, H, G T, P] where it is of query heads.

    Args:
        bias_BMP: of M heads, of keys and values or of queries.
        heads: key/value heads.
        tokens: queries of each query head.
        together: those of one token stand together, [T G]; else those of one query head, [G T].
    """
    if bias_BMP.shape[1] == heads:
        return bias_BMP[:, :, None]
    rows, count, slots = bias_BMP.shape
    shape = (rows, heads, count // heads, 1, slots)  # [B, H, G, 1, P], then T times along the fourth
    bias_BMPTS = bias_BMP.reshape(shape).expand(-1, -1, -1, tokens, -1)
    return (bias_BMPTS.transpose(2, 3) if together else bias_BMPTS).reshape(rows, heads, -1, slots)


def attend_continuation(
    query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float, bias_BMP: Tensor | None = None
) -> Tensor:
    """The last T of S slots attend to the slots before them, and causally to each other; gives [B, T, N, D].

    `bias_BMP` is added to the scores of the slots before them, by key/value head or by query head.
    """
    assert _fused is not None
    rows, count, tokens, size = query_BNTD.shape
    heads, before = key_BHSD.shape[1], key_BHSD.shape[2] - tokens
    past, own = (
        [tensor[:, :, part] for tensor in (key_BHSD, value_BHSD)] for part in (slice(before), slice(before, None))
    )
    # without a mask the query heads of one key/value head are more queries of it: nothing is repeated
    bias = None if bias_BMP is None else of_queries(bias_BMP, heads, tokens)
    of_past, sum_past = _fused(query_BNTD.reshape(rows, heads, -1, size), *past, attn_mask=bias, scale=scaling)
    front = of_past.reshape(query_BNTD.shape), sum_past.reshape(rows, count, tokens)
    out_BNTD = merge_partials(front, summed(query_BNTD, own[0], own[1], scaling, causal=True))
    return out_BNTD.transpose(1, 2)


def attend_shared(
    query_BNTD: Tensor,
    own: tuple[Tensor, Tensor],
    shared: tuple[Tensor, Tensor],
    bias_B1TS: Tensor | None,
    scaling: float,
    shared_bias_1MP: Tensor | None = None,
) -> Tensor:
    """Attention to slots all rows share [1, H, P, D] and to each row's own; gives [B, T, N, D].

    `bias_B1TS` is added to the scores of a row's own slots, `shared_bias_1MP` to those of the shared ones.
    """
    rows, count, tokens, size = query_BNTD.shape
    # A row's own slots need rows, [B, N, T, D]; the shared ones take all tokens together, [X, N, D] with X = B T.
    part = summed(query_BNTD, own[0], own[1], scaling, bias=bias_B1TS)
    of_own, sum_own = (tensor.transpose(1, 2).flatten(0, 1) for tensor in part)
    query_XND = query_BNTD.transpose(1, 2).reshape(-1, count, size)
    return merge_partials(across(query_XND, *shared, scaling, shared_bias_1MP), (of_own, sum_own)).view(
        rows, tokens, count, size
    )


def bias_of(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers added to scores: 0 where a token sees a slot, else the lowest number of the type."""
    bias_B1TS = torch.zeros_like(mask_B1TS, dtype=dtype)
    return bias_B1TS.masked_fill_(~mask_B1TS, torch.finfo(dtype).min)
