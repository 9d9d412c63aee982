"""Log-probabilities of given tokens from last hidden states, without all logits at once, with gradients or without.

    logprobs_of(lm, hidden_ND, targets_N)     float32 [N]

A value depends on its own hidden state alone. Where the head is frozen, the gradient of each value is therefore made
slice by slice along with it, known up to the factor that comes back, and no logits are held for the way back.

Shape letters: N tokens · D width · V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy

from ttabench.lm import LM

LOGITS_AT_ONCE = 2**26
"""Float32 logits alive at a time without gradients (256 MiB), however large vocabulary and batch are."""
LOGITS_TRAINED = {"cpu": 2**22, "cuda": 2**26}
"""The same with gradients. On a CPU 16 MiB: so little is used again, without asking the system for memory."""


def logprobs_of(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities (natural log) of the targets, float32 [N]; differentiable."""
    if torch.is_grad_enabled() and hidden_ND.requires_grad and _is_frozen(lm):
        values_N: Tensor = _FrozenHead.apply(hidden_ND, targets_N, lm)  # type: ignore[no-untyped-call]
        return values_N
    size = len(hidden_ND) if torch.is_grad_enabled() else max(1, LOGITS_AT_ONCE // lm.vocab_size)
    parts = zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True)
    return torch.cat([-cross_entropy(lm.logits(h).float(), t, reduction="none") for h, t in parts])


def _is_frozen(lm: LM) -> bool:
    """Whether nothing of the head is trained: neither its weights, nor a delta of them, nor one hooked to it."""
    modules = list(lm.model.get_output_embeddings().modules())
    held = [each for module in modules for each in module._parameters.values() if each is not None]
    return not any(module._forward_hooks for module in modules) and not any(each.requires_grad for each in held)


class _FrozenHead(torch.autograd.Function):
    """Log-probabilities of targets, and their gradients with them."""

    @staticmethod
    def forward(ctx: FunctionCtx, hidden_ND: Tensor, targets_N: Tensor, lm: LM) -> Tensor:
        size = max(1, LOGITS_TRAINED.get(hidden_ND.device.type, 2**26) // lm.vocab_size)
        values_N = torch.empty(len(hidden_ND), device=hidden_ND.device)
        slopes_ND = torch.empty_like(hidden_ND)
        for begin in range(0, len(hidden_ND), size):
            part, targets_X1 = slice(begin, begin + size), targets_N[begin : begin + size, None]
            with torch.enable_grad():
                hidden_XD = hidden_ND[part].detach().requires_grad_()
                logits_XV = lm.logits(hidden_XD)
            logprobs_XV = logits_XV.detach().float().log_softmax(-1)
            values_N[part] = logprobs_XV.gather(1, targets_X1)[:, 0]
            slope_XV = logprobs_XV.exp_().neg_().scatter_add_(1, targets_X1, logprobs_XV.new_ones(targets_X1.shape))
            (slopes_ND[part],) = torch.autograd.grad(logits_XV, hidden_XD, slope_XV.to(logits_XV.dtype))
        ctx.save_for_backward(slopes_ND)
        return values_N

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slopes_ND,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return slopes_ND * gradients[0][:, None].to(slopes_ND.dtype), None, None
