"""Attention Matching: the slots that KVzip keeps, with biases and values that give the attention of all of them.

Zweiger et al., arXiv 2602.16284 (released code: adamzweiger/compaction), sections 3.2 and 3.3, for the queries of the
text's repetition.
Shape letters: L layers · H key/value heads · N query heads · G = N / H · T tokens · P slots · S slots kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttabench.lm.model import LM
from ttabench.methods import eviction
from ttabench.methods.eviction.evicted_cache import RaggedCache
from ttabench.methods.eviction.evicting import grouped
from ttabench.methods.eviction.kvzip import KVzip, Queries, Text, packed
from ttabench.methods.eviction.settings import FIT_STEPS, MatchingSettings

LOWEST, HIGHEST = math.exp(-3.0), math.exp(3.0)
"""Of weights: outside, few queries decide, and others see a slot too much or not at all."""


@dataclass(frozen=True)
class Target:
    """What a head's attention to all slots is, for some queries."""

    scores_QP: Tensor
    """float32, scaled and with biases; -inf where a slot is not seen."""
    values_PD: Tensor

    @staticmethod
    def of(query_QD: Tensor, key_PD: Tensor, values_PD: Tensor, added_P: Tensor, seen_QP: Tensor | None) -> Target:
        """Of queries that are scaled already; those that see no slot are left out."""
        scores_QP = query_QD.float() @ key_PD.float().T + added_P
        if seen_QP is not None:
            scores_QP = scores_QP.masked_fill(~seen_QP, -math.inf)
        some_Q = (scores_QP > -math.inf).any(-1)
        return Target(scores_QP if bool(some_Q.all()) else scores_QP[some_Q], values_PD.float())


def weights_of(columns_QS: Tensor, mass_Q: Tensor) -> Tensor:
    """[S] within bounds, so that the weighted columns have this sum: least squares, by gradient descent with
    momentum. FISTA (Beck and Teboulle 2009) with a step that is no more than 1 over the largest eigenvalue."""
    gram_SS, right_S = columns_QS.T @ columns_QS, columns_QS.T @ mass_Q
    step = 1 / gram_SS.norm().clamp(min=1e-9)
    weights_S = ahead_S = torch.ones_like(right_S)
    momentum = 1.0
    for _ in range(FIT_STEPS):
        before_S, weights_S = weights_S, (ahead_S - step * (gram_SS @ ahead_S - right_S)).clamp(LOWEST, HIGHEST)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead_S = weights_S + (momentum - 1) / following * (weights_S - before_S)
        momentum = following
    return weights_S


def values_of(target: Target, picked_S: Tensor, bias_S: Tensor, ridge: float) -> Tensor:
    """[S, D]: values of the kept slots with which they give the output of all; near those that were read."""
    read_SD = target.values_PD[picked_S]
    output_QD = target.scores_QP.softmax(-1) @ target.values_PD
    paid_QS = (target.scores_QP[:, picked_S] + bias_S).softmax(-1).nan_to_num()  # of a query that sees none of them
    gram_SS = paid_QS.T @ paid_QS
    gram_SS.diagonal().add_(ridge * gram_SS.diagonal().mean().clamp(min=1e-12))
    change_SD: Tensor = torch.linalg.solve(gram_SS, paid_QS.T @ (output_QD - paid_QS @ read_SD))
    return read_SD + change_SD


class AttentionMatching(KVzip):
    """State: KVzip's, with a bias of every slot."""

    spec = eviction.ATTENTION_MATCHING
    settings: MatchingSettings

    def __init__(self, lm: LM, settings: MatchingSettings) -> None:
        super().__init__(lm, settings)
        self.query_tokens = settings.query_tokens

    @torch.no_grad()
    def _kept(self, text: Text) -> RaggedCache:
        stays_LHP = self._stays(text)
        bias, values = [], []
        for layer in range(self.lm.layers):
            added_HP, queries = _added(text, layer), [chunk.queries[layer] for chunk in text.chunks]
            for head, target in enumerate(_targets(text, layer, queries, added_HP)):
                picked_S = stays_LHP[layer, head].nonzero()[:, 0]
                bias_S, values_SD = fitted(target, picked_S, self.settings.ridge)
                bias.append(added_HP[head, picked_S] + bias_S)
                values.append(values_SD)
        return packed(text, stays_LHP, bias=torch.cat(bias), values=torch.cat(values).to(text.values.dtype))


def fitted(target: Target, picked_S: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Bias and values of the kept slots of one head."""
    if not len(picked_S) or not len(target.scores_QP):
        return torch.zeros(len(picked_S), device=picked_S.device), target.values_PD[picked_S]
    columns_QP = (target.scores_QP - target.scores_QP.amax(-1, keepdim=True)).exp()
    bias_S = weights_of(columns_QP[:, picked_S], columns_QP.sum(-1)).log()
    return bias_S, values_of(target, picked_S, bias_S, ridge)


def _targets(text: Text, layer: int, queries: Sequence[Queries], added_HP: Tensor) -> Iterator[Target]:
    """What the attention of every key/value head of a layer is."""
    keys_HPD, values_HPD = text.keys[layer], text.values[layer]
    heads, device = len(keys_HPD), keys_HPD.device
    for head in range(heads):
        parts, masks = [], []
        for own in queries:
            query_GTD = grouped(own.query_NTD, heads)[head].to(device)
            parts.append((query_GTD.float() * own.scaling).flatten(0, 1))
            seen_HTP = own.seen_HTP
            if seen_HTP is None:  # a layer with a window may hide slots from one chunk's queries and not from another's
                seen_HTP = torch.ones(1, query_GTD.shape[1], keys_HPD.shape[1], dtype=torch.bool)
            masks.append(seen_HTP[min(head, len(seen_HTP) - 1)].to(device).repeat(len(query_GTD), 1))
        seen_QP = None if all(own.seen_HTP is None for own in queries) else torch.cat(masks)
        yield Target.of(torch.cat(parts), keys_HPD[head], values_HPD[head], added_HP[head], seen_QP)


def _added(text: Text, layer: int) -> Tensor:
    """float32 [H, P]: what is added to the scores of slots already; -inf where one is padding."""
    added_HP = torch.zeros_like(text.scores[layer])
    if text.prefix.bias_LBHP is not None:
        added_HP = added_HP + text.prefix.bias_LBHP[layer][0].to(added_HP)
    if text.prefix.hidden_LBHP is not None:
        added_HP = added_HP.masked_fill(text.prefix.hidden_LBHP[layer][0].to(added_HP.device), -math.inf)
    return added_HP
