"""Log-probabilities of given tokens from last hidden states, without all logits at once, with gradients or without.

    logprobs_of(lm, hidden_ND, targets_N)     float32 [N]

Shape letters: N tokens · D width · V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from ttabench.lm.loading.finite import refuse_not_finite
from ttabench.lm.model import LM

LOGITS_AT_ONCE = 2**26
"""Float32 logits alive at a time without gradients (256 MiB), however large vocabulary and batch are."""
LOGITS_TRAINED = {"cpu": 2**22, "cuda": 2**26}
"""The same with gradients. On a CPU 16 MiB: so little is used again, without asking the system for memory."""


def logprobs_of(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities (natural log) of the targets, float32 [N] (float64 of such a model); differentiable."""
    head = lm.model.get_output_embeddings()
    if not torch.is_grad_enabled():
        values_N = torch.cat([_chosen(lm.logits(h), t) for h, t in _slices(lm, LOGITS_AT_ONCE, hidden_ND, targets_N)])
        refuse_not_finite(values_N)
        return values_N
    if not (lm.linear_head and type(head) is nn.Linear and not head._forward_hooks):
        return _chosen(lm.logits(hidden_ND), targets_N)
    # no logits are held: those of a slice are computed again on the way back
    weight_VD, bias_V = head.weight, head.bias  # of this forward, whatever stands there

    def of_slice(hidden: Tensor, targets: Tensor) -> Tensor:
        return _chosen(linear(hidden.to(weight_VD.device), weight_VD, bias_V), targets.to(weight_VD.device))

    most = LOGITS_TRAINED.get(hidden_ND.device.type, LOGITS_AT_ONCE)
    slices = _slices(lm, most, hidden_ND, targets_N)
    values = [checkpoint(of_slice, *part, use_reentrant=False, preserve_rng_state=False) for part in slices]
    return torch.cat(values).to(hidden_ND.device)


def logprobs_and_best(lm: LM, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities of the targets and of the likeliest tokens, float32 [N, 2]."""
    parts = []
    for hidden, targets in _slices(lm, LOGITS_AT_ONCE, hidden_ND, targets_N):
        logprobs_NV = lm.logits(hidden).float().log_softmax(-1)
        parts.append(torch.stack([logprobs_NV.gather(1, targets[:, None])[:, 0], logprobs_NV.amax(1)], dim=1))
    values_N2 = torch.cat(parts)
    refuse_not_finite(values_N2)
    return values_N2


def _slices(lm: LM, most: int, hidden_ND: Tensor, targets_N: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Hidden states and targets of so few tokens that there are at most so many logits of them."""
    size = max(1, most // lm.vocab_size)
    return list(zip(torch.split(hidden_ND, size), torch.split(targets_N, size), strict=True))


def _chosen(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    kind = torch.promote_types(logits_NV.dtype, torch.float32)
    return -cross_entropy(logits_NV.to(kind), targets_N, reduction="none")
