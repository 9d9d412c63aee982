"""Attention put together from parts, on a CPU: torch's fused kernel never writes scores to memory and tells their sum.

    joined(summed(q, past_k, past_v, scale), summed(q, k, v, scale, causal=True))     one softmax over both

Two softmaxes are one when each is weighed by its share of the exponentials (FlashAttention, arXiv 2205.14135, section
3.1; Hydragen, arXiv 2402.05099, section 3).

Shape letters: B rows · N query heads · H key/value heads · G = N / H · T queries · S slots · P slots all rows share ·
    D head size.
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
"""Attention to some of the slots [B, N, T, D], and the log of the sum of its exponentials [B, N, T]."""


def summed(
    query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float, *, bias: Tensor | None = None,
    causal: bool = False,
) -> Part:  # fmt: skip
    """Attention to these slots alone, where `in_two_parts` allows it; `bias` [B, 1, T, S] is added to the scores."""
    assert _fused is not None
    groups = query_BNTD.shape[1] // key_BHSD.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key_BHSD, value_BHSD))
    out_BNTD, sum_BNT = _fused(query_BNTD, key, value, attn_mask=bias, is_causal=causal, scale=scaling)
    return out_BNTD, sum_BNT.reshape(query_BNTD.shape[:3])


def joined(first: Part, second: Part) -> Tensor:
    """Attention [B, N, T, D] to the slots of both parts."""
    share_BNT1 = torch.sigmoid(second[1] - first[1])[..., None]
    return torch.lerp(first[0], second[0], share_BNT1.to(second[0].dtype))


def behind(query_BNTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, scaling: float) -> Tensor:
    """The last T of S slots attend to the slots before them, and causally to each other; gives [B, T, N, D]."""
    assert _fused is not None
    rows, count, tokens, size = query_BNTD.shape
    heads, before = key_BHSD.shape[1], key_BHSD.shape[2] - tokens
    past, own = ([each[:, :, part] for each in (key_BHSD, value_BHSD)] for part in (slice(before), slice(before, None)))
    # without a mask the query heads of one key/value head are more queries of it: nothing is repeated
    of_past, sum_past = _fused(query_BNTD.reshape(rows, heads, -1, size), *past, scale=scaling)
    front = of_past.reshape(query_BNTD.shape), sum_past.reshape(rows, count, tokens)
    out_BNTD = joined(front, summed(query_BNTD, own[0], own[1], scaling, causal=True))
    return out_BNTD.transpose(1, 2)


def beside(
    query_BNTD: Tensor, own: tuple[Tensor, Tensor], shared: tuple[Tensor, Tensor], bias_B1TS: Tensor | None = None,
    *, causal: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled queries attend to slots all rows share [1, H, P, D] and to each row's own; gives [B, T, N, D].

    `bias_B1TS` is added to the scores of a row's own slots; `causal` where these are the T tokens and no bias is given.
    The G query heads of one key/value head stand side by side.
    """
    assert _fused is not None
    rows, count, tokens, size = query_BNTD.shape
    heads = own[0].shape[1]
    shape = (heads, rows, count // heads, tokens)
    query_HBGTD = query_BNTD.view(rows, heads, -1, tokens, size).transpose(0, 1)
    of_shared, sum_shared = _fused(query_HBGTD.reshape(1, heads, -1, size), *shared, scale=1.0)
    if tokens == 1:  # the query heads of one key/value head are queries of it: nothing is repeated
        of_own, sum_own = _fused(query_BNTD.reshape(rows, heads, -1, size), *own, attn_mask=bias_B1TS, scale=1.0)
    else:
        of_own, sum_own = summed(query_BNTD, own[0], own[1], 1.0, bias=bias_B1TS, causal=causal)
    share_HBGT = torch.sigmoid(sum_own.view(rows, heads, -1, tokens).transpose(0, 1) - sum_shared.view(shape))
    of_own_HBGTD = of_own.view(rows, heads, -1, tokens, size).transpose(0, 1)
    out_HBGTD = torch.lerp(of_shared.view(*shape, size), of_own_HBGTD, share_HBGT[..., None].to(of_own.dtype))
    return out_HBGTD.permute(1, 3, 0, 2, 4).reshape(rows, tokens, count, size)


def bias_of(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that a token sees what the bool mask says: 0 or the lowest number of the type."""
    bias_B1TS = torch.zeros_like(mask_B1TS, dtype=dtype)
    return bias_B1TS.masked_fill_(~mask_B1TS, torch.finfo(dtype).min)
