"""Attention put together from parts: on a CPU by torch's fused kernel, which writes no scores and tells their sum.

    merge_partials(summed(q, past_k, past_v, scale), summed(q, k, v, scale, causal=True))     one softmax over both

Two softmaxes are one when each is weighed by its share of the exponentials (FlashAttention, arXiv 2205.14135, section
3.1; Hydragen, arXiv 2402.05099, section 3).

Shape letters: B rows · N query heads · H key/value heads · G = N / H · M heads of a bias, N or H · T queries ·
    S slots · P slots all rows share · D head size.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

SCORES_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
"""Scores written at a time without gradients. 4 MiB stay in a CPU's cache; a GPU wants few large products: 256 MiB."""
_fused = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""The kernel that `scaled_dot_product_attention` calls on a CPU; asked by name, it gives the log-sum-exp too."""


def in_two_parts(device: torch.device) -> bool:
    """Whether attention can be put together from two calls of the fused kernel.

    Not under gradients, and not where somebody asked for another kernel (`torch.nn.attention.sdpa_kernel`).
    """
    flash: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]  # for a CPU, too
    return _fused is not None and device.type == "cpu" and flash and not torch.is_grad_enabled()


Part: TypeAlias = tuple[Tensor, Tensor]
"""Attention to some of the slots [B, N, T, D], and the log of the sum of its exponentials [B, N, T]."""


def summed(
    query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float, *, bias: Tensor | None = None,
    causal: bool = False,
) -> Part:  # fmt: skip
    """Attention to these slots alone: by the fused kernel where `in_two_parts` allows it, else over written scores.

    Args:
        bias: is added to the scores: [B, 1 or N, T, S], or [B, M, S] of all queries of a head.
        causal: of as many slots as queries, each query sees those up to its own; of the fused kernel.
    """
    rows, count, tokens, size = query_BNTD.shape
    heads, query, key, value = key_BHSD.shape[1], query_BNTD, key_BHSD, value_BHSD
    if tokens == 1 or not (causal or (bias is not None and bias.dim() == 4)):
        # the query heads of one key/value head are queries of it: nothing is repeated
        query = query.reshape(rows, heads, -1, size)
    else:
        key, value = (tensor.repeat_interleave(count // heads, dim=1) for tensor in (key, value))
    if bias is not None and bias.dim() == 3:
        bias = _of_queries(bias, heads, tokens)
    if in_two_parts(query.device):
        # a single token sees every slot; causal, it would see the first alone: the kernel aligns [T, S] at the top
        out, total = _fused(query, key, value, attn_mask=bias, is_causal=causal and tokens > 1, scale=scaling)
    else:
        assert not causal, "causal attention is the fused kernel's"
        out, total = _written(query * scaling, key, value, bias)
    return out.reshape(query_BNTD.shape), total.reshape(query_BNTD.shape[:3])


def _written(query_BHXD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, bias: Tensor | None) -> Part:
    """Attention of scaled queries over scores in memory, differentiable; so many queries at a time."""
    step = query_BHXD.shape[2]
    if not torch.is_grad_enabled():
        scores_a_query = len(query_BHXD) * key_BHSD.shape[1] * key_BHSD.shape[2]
        step = max(1, SCORES_AT_ONCE.get(query_BHXD.device.type, 2**26) // scores_a_query)
    outs, totals = [], []
    for begin in range(0, query_BHXD.shape[2], step):
        part = slice(begin, begin + step)
        scores = query_BHXD[:, :, part] @ key_BHSD.transpose(2, 3)
        if bias is not None:
            scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, part])
        totals.append(scores.float().logsumexp(-1))
        outs.append((scores - totals[-1][..., None]).exp().to(value_BHSD.dtype) @ value_BHSD)
    return torch.cat(outs, dim=2), torch.cat(totals, dim=2)


def merge_partials(first: Part, second: Part) -> Tensor:
    """Attention [B, N, T, D] to the slots of both parts."""
    # exp(b) / (exp(a) + exp(b)) = sigmoid(b - a), of the logs of sums a and b: never a large exponential
    share_BNT1 = torch.sigmoid(second[1] - first[1])[..., None]
    return torch.lerp(first[0], second[0], share_BNT1.to(second[0].dtype))


def _of_queries(bias_BMS: Tensor, heads: int, tokens: int) -> Tensor:
    """A bias by head for queries of key/value heads: [B, H, 1, S], or [B, H, G T, S] where it is of query heads."""
    if bias_BMS.shape[1] == heads:
        return bias_BMS[:, :, None]
    rows, count, slots = bias_BMS.shape
    bias_BHGTS = bias_BMS.reshape(rows, heads, count // heads, 1, slots).expand(-1, -1, -1, tokens, -1)
    return bias_BHGTS.reshape(rows, heads, -1, slots)


def attend_continuation(
    query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float, bias_BMP: Tensor | None = None
) -> Tensor:
    """The last T of S slots attend to the slots before them, and causally to each other; gives [B, T, N, D].

    `bias_BMP` is added to the scores of the slots before them, by key/value head or by query head.
    """
    before = key_BHSD.shape[2] - query_BNTD.shape[2]
    past = summed(query_BNTD, key_BHSD[:, :, :before], value_BHSD[:, :, :before], scaling, bias=bias_BMP)
    own = summed(query_BNTD, key_BHSD[:, :, before:], value_BHSD[:, :, before:], scaling, causal=True)
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
    bias, own_bias = bias_1MP, None if masks[1] is None else bias_of(masks[1], query_BNTD.dtype)
    if masks[0] is not None:
        seen_B1TP = masks[0].expand(rows, -1, -1, -1)
        bias = bias_of(seen_B1TP.transpose(0, 1).reshape(1, 1, rows * tokens, -1), query_BNTD.dtype)
        if bias_1MP is not None:
            heads_1N1P = bias_1MP.to(bias).repeat_interleave(count // bias_1MP.shape[1], dim=1)[:, :, None]
            bias = torch.maximum(bias + heads_1N1P, bias.new_tensor(torch.finfo(bias.dtype).min))
    out, total = summed(query_1NXD, *shared, scaling, bias=bias)
    theirs = out.view(count, rows, tokens, size).transpose(0, 1), total.view(count, rows, tokens).transpose(0, 1)
    return merge_partials(theirs, summed(query_BNTD, *own, scaling, bias=own_bias)).transpose(1, 2)


def bias_of(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers added to scores: 0 where a token sees a slot, else the lowest number of the type."""
    bias_B1TS = torch.zeros_like(mask_B1TS, dtype=dtype)
    return bias_B1TS.masked_fill_(~mask_B1TS, torch.finfo(dtype).min)
