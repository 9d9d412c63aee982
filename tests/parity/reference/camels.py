"""CaMeLS: token weights, gradient steps weighted by them, and the loss after the steps, all differentiable.

Hu et al., arXiv 2305.15076, section 3.

Shape letters: B rows · T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, softplus

from tests.parity.reference.decoders import Weights, causal, gpt2, gpt2_states, mixed


def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mixed(q, k, v, causal(q.shape[2]))


def token_weights(w: Weights, config: dict[str, Any], ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
    body = {name.replace("gpt_base", "transformer"): each for name, each in w.items()}
    h = gpt2_states(body, config, ids_BT, torch.arange(ids_BT.shape[1]), attend)
    inner = gelu(h @ w["fc1.weight"].T + w["fc1.bias"])
    return softplus(inner @ w["fc2.weight"].T + w["fc2.bias"], beta=3)[..., 0] * mask_BT


def logits(theta: Weights, config: dict[str, Any], ids_BT: Tensor) -> Tensor:
    return gpt2(theta, config, ids_BT, torch.arange(ids_BT.shape[1]), attend)


def following(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Loss of every token but the first, [B, T-1]; 0 where it is -100."""
    return cross_entropy(logits_BTV[:, :-1].transpose(1, 2), ids_BT[:, 1:], reduction="none")


def updated(
    theta: Weights, config: dict[str, Any], given: Weights, weights_BT: Tensor, rule: dict[str, Any]
) -> tuple[Weights, list[Tensor]]:
    """The base after one step a document, or after one on all of them, and the loss before each step."""
    rows = range(len(weights_BT)) if rule["sequential"] else [slice(None)]
    losses = []
    for row in [*rows] * rule["num_inner_steps"]:
        ids, weights = (each[row].view(-1, each.shape[1]) for each in (given["text_ids"], weights_BT))
        losses.append((following(logits(theta, config, ids), ids) * weights[:, 1:]).mean())
        slopes = torch.autograd.grad(losses[-1], list(theta.values()), create_graph=True)
        theta = {name: old - rule["inner_lr"] * slope for (name, old), slope in zip(theta.items(), slopes, strict=True)}
    return theta, losses


def outer(before: Weights, after: Weights, config: dict[str, Any], given: Weights) -> tuple[Tensor, Tensor]:
    """Mean loss of the answers after the steps, and how far the base moved on other texts."""
    targets = given["qa_target_ids"]
    answers = following(logits(after, config, given["qa_ids"]), targets).sum() / (targets[:, 1:] != -100).sum()
    old, new = (logits(theta, config, given["loc_ids"]).log_softmax(-1) for theta in (before, after))
    moved_BT, mask_BT = (old.exp() * (old - new)).sum(-1), given["loc_mask"]
    return answers, (moved_BT * mask_BT).sum() / mask_BT.sum()
