"""Log-probabilities of given tokens from last hidden states, without all logits at once, with gradients or without.

    logprobs_of(lm, hidden_ND, targets_N)     float32 [N]

A value depends on its own hidden state alone. Where the head is a frozen linear map, the gradient of each value is
therefore made slice by slice along with it, known up to the factor that comes back, and no logits are held.

Shape letters: N tokens · D width · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from ttabench.lm.loading.finite import refuse_not_finite
from ttabench.lm.model import LM

LOGITS_AT_ONCE = 2**26
"""Float32 logits alive at a time without gradients (256 MiB), however large vocabulary and batch are."""
LOGITS_TRAINED = {"cpu": 2**22, "cuda": 2**26}
"""The same with gradients. On a CPU 16 MiB: so little is used again, without asking the system for memory."""


_wanted: ContextVar[bool] = ContextVar("second order", default=False)


@contextmanager
def second_order() -> Iterator[None]:
    """Let what forwards in the block compute be differentiated twice: attention and head are written out."""
    token = _wanted.set(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _wanted.reset(token)


def logprobs_of(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities (natural log) of the targets, float32 [N] (float64 of such a model); differentiable."""
    if torch.is_grad_enabled() and hidden_ND.requires_grad and not _wanted.get():
        head = lm.model.get_output_embeddings()
        if (
            lm.linear_head
            and isinstance(head, nn.Linear)
            and _is_frozen(head)
            and head.weight.device == hidden_ND.device
        ):
            frozen_N: Tensor = _FrozenHead.apply(hidden_ND, targets_N, head)  # type: ignore[no-untyped-call]
            return frozen_N
    size = len(hidden_ND) if torch.is_grad_enabled() else max(1, LOGITS_AT_ONCE // lm.vocab_size)
    parts = zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True)
    kind = torch.promote_types(lm.dtype, torch.float32)
    values_N = torch.cat([-cross_entropy(lm.logits(h).to(kind), t, reduction="none") for h, t in parts])
    if not torch.is_grad_enabled():
        refuse_not_finite(values_N)
    return values_N


def logprobs_and_best(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities of the targets and of the likeliest tokens, float32 [N, 2]."""
    size = max(1, LOGITS_AT_ONCE // lm.vocab_size)
    parts = []
    for hidden, targets in zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True):
        logprobs_NV = lm.logits(hidden).float().log_softmax(-1)
        parts.append(torch.stack([logprobs_NV.gather(1, targets[:, None])[:, 0], logprobs_NV.amax(1)], dim=1))
    values_N2 = torch.cat(parts)
    refuse_not_finite(values_N2)
    return values_N2


def _is_frozen(head: nn.Module) -> bool:
    """Whether nothing trains the head: no weight of it, no delta, no hook that adds one."""
    held = [parameter for parameter in head._parameters.values() if parameter is not None]
    return not head._forward_hooks and not any(tensor.requires_grad for tensor in held)


class _FrozenHead(torch.autograd.Function):
    """Log-probabilities of targets by a linear map, whose slopes [N, D] are made with them: gradients only scale them.

    The same two tensors hold every slice of logits.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, targets_N: Tensor, head: nn.Linear) -> Tensor:
        weight_VD, size = head.weight, max(1, LOGITS_TRAINED.get(hidden_ND.device.type, 2**26) // head.out_features)
        values_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.float32)
        slopes_ND = torch.empty_like(hidden_ND)
        logits = hidden_ND.new_empty(min(size, len(hidden_ND)), head.out_features)
        logprobs = torch.empty_like(logits, dtype=torch.float32)
        # d log p(target) / d hidden = (onehot - p) W, slice by slice of X tokens, so that no logits [N, V] are kept
        for begin in range(0, len(hidden_ND), size):
            part, targets_X1 = slice(begin, begin + size), targets_N[begin : begin + size, None]
            logits_XV, logprobs_XV = logits[: len(targets_X1)], logprobs[: len(targets_X1)]
            torch.mm(hidden_ND[part], weight_VD.T, out=logits_XV)
            if head.bias is not None:
                logits_XV += head.bias
            torch.log_softmax(logits_XV, -1, dtype=torch.float32, out=logprobs_XV)
            values_N[part] = logprobs_XV.gather(1, targets_X1)[:, 0]
            logprobs_XV.exp_().neg_().scatter_add_(1, targets_X1, logprobs_XV.new_ones(targets_X1.shape))
            torch.mm(logprobs_XV.to(weight_VD.dtype), weight_VD, out=slopes_ND[part])
        ctx.save_for_backward(slopes_ND)
        return values_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slopes_ND,) = ctx.saved_tensors
        return slopes_ND * gradients[0][:, None].to(slopes_ND.dtype), None, None
