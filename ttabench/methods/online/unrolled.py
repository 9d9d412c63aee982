"""Gradient steps that can be learned through: a few documents unrolled, and what the weights after them are worth.

CaMeLS (Hu et al., arXiv 2305.15076, section 3): the gradient of `outer` goes to the weights w of tokens through all
steps, in second order.

Shape letters: T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from ttabench.lm.forward.head import second_order
from ttabench.lm.forward.patching import forward
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.scoring import Item, nll, target_logprobs
from ttabench.methods.online.method import weighted_loss
from ttabench.methods.online.settings import OnlineSettings
from ttabench.methods.parts.trained import Factors, Weights

Document = tuple[list[int], Tensor]
"""Token ids, and their weights [T]."""
Parts = Mapping[str, Tensor]


def document_losses(
    lm: LM, trained: Weights | Factors, parts: Parts, documents: Sequence[Document], settings: OnlineSettings
) -> Tensor:
    """Mean of the weighted losses of these documents, which are read in one batch; differentiable twice."""
    with torch.enable_grad(), second_order(), trained.in_place(parts) as patch:
        logprobs = target_logprobs(lm, patch, [([], ids) for ids, _ in documents])
        losses = [
            weighted_loss(settings, logprobs_T, weights)
            for logprobs_T, (_, weights) in zip(logprobs, documents, strict=True)
        ]
        return torch.stack(losses).mean()


def stepped(
    lm: LM,
    trained: Weights | Factors,
    parts: Parts,
    steps: Sequence[Sequence[Document]],
    settings: OnlineSettings,
    rate: float,
    *,
    first_order: bool = False,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The parts after a plain gradient step on each batch of documents, differentiable; and the losses before each.

    Args:
        first_order: gradients do not depend on the steps before, only on the weights of tokens.
    """
    now, losses = dict(parts), []
    for documents in steps:
        at = {name: part.detach().requires_grad_() for name, part in now.items()} if first_order else now
        loss = document_losses(lm, trained, at, documents, settings)
        slopes = torch.autograd.grad(loss, list(at.values()), create_graph=True)
        now = {name: part - rate * slope for (name, part), slope in zip(now.items(), slopes, strict=True)}
        losses.append(loss)
    return now, losses


def answers_loss(lm: LM, trained: Weights | Factors, parts: Parts, items: Sequence[Item]) -> Tensor:
    """Mean negative log-likelihood of the target tokens under these parts."""
    with torch.enable_grad(), second_order(), trained.in_place(parts) as patch:
        summed, count = nll(lm, patch, items)
    return summed / count


def moved(lm: LM, trained: Weights | Factors, before: Parts, after: Parts, ids: Sequence[int]) -> Tensor:
    """KL(before || after) of the next token after each token of a text, [T]; differentiable in `after`."""
    ids_BT = torch.tensor([list(ids)], device=lm.device)
    with torch.no_grad(), trained.in_place(before) as patch:
        held_TV = _logprobs(lm, patch, ids_BT)
    with torch.enable_grad(), second_order(), trained.in_place(after) as patch:
        now_TV = _logprobs(lm, patch, ids_BT)
    return kl_div(now_TV, held_TV, log_target=True, reduction="none").sum(-1)


def _logprobs(lm: LM, patch: Patch, ids_BT: Tensor) -> Tensor:
    logits_BTV, _ = forward(lm, patch, ids_BT)
    return logits_BTV[0].float().log_softmax(-1)
