"""Attention Matching: the slots that KVzip keeps, with biases and values that give the attention of all of them.

Zweiger et al., arXiv 2602.16284 (released code: adamzweiger/compaction), sections 3.2 and 3.3, for the queries of the
text's repetition.
Shape letters: L layers · H key/value heads · N query heads · G = N / H · T tokens · P slots · S slots kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ttabench.methods import eviction
from ttabench.methods.eviction.evicting import RaggedCache, grouped
from ttabench.methods.eviction.kvzip import KVzip, Queries, Text, packed

FIT_STEPS = 60
"""Of accelerated projected gradient descent on the weights whose logarithms are biases."""
RIDGE = 1e-3
"""Weight of staying near the values that were read, against that of an average slot's attention."""
LOWEST, HIGHEST = math.exp(-3.0), math.exp(3.0)
"""Of weights: outside, few queries decide, and others see a slot too much or not at all."""


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


def values_of(scores_QP: Tensor, values_PD: Tensor, picked_S: Tensor, bias_S: Tensor) -> Tensor:
    """[S, D]: values of the kept slots with which they give the output of all; near those that were read."""
    read_SD, output_QD = values_PD[picked_S], scores_QP.softmax(-1) @ values_PD
    paid_QS = (scores_QP[:, picked_S] + bias_S).softmax(-1).nan_to_num()  # of a query that sees none of them
    gram_SS = paid_QS.T @ paid_QS
    gram_SS.diagonal().add_(RIDGE * gram_SS.diagonal().mean().clamp(min=1e-12))
    change_SD: Tensor = torch.linalg.solve(gram_SS, paid_QS.T @ (output_QD - paid_QS @ read_SD))
    return read_SD + change_SD


class AttentionMatching(KVzip):
    """State: KVzip's, with a bias of every slot."""

    spec = eviction.ATTENTION_MATCHING
    query_tokens = 1024

    @torch.no_grad()
    def _kept(self, text: Text) -> RaggedCache:
        stays_LHP = self._stays(text)
        bias, values = [], []
        for layer in range(self.lm.layers):
            added_HP, queries = _added(text, layer), [chunk.queries[layer] for chunk in text.chunks]
            for head, scores_QP in enumerate(scores_of(queries, text.keys[layer], added_HP)):
                picked_S, values_PD = stays_LHP[layer, head].nonzero()[:, 0], text.values[layer, head].float()
                if not len(picked_S) or not len(scores_QP):
                    bias_S, values_SD = torch.zeros(len(picked_S), device=picked_S.device), values_PD[picked_S]
                else:
                    columns_QP = (scores_QP - scores_QP.amax(-1, keepdim=True)).exp()
                    bias_S = weights_of(columns_QP[:, picked_S], columns_QP.sum(-1)).log()
                    values_SD = values_of(scores_QP, values_PD, picked_S, bias_S)
                bias.append(added_HP[head, picked_S] + bias_S)
                values.append(values_SD)
        return packed(text, stays_LHP, bias=torch.cat(bias), values=torch.cat(values).to(text.values.dtype))


def scores_of(queries: Sequence[Queries], keys_HPD: Tensor, added_HP: Tensor) -> Iterator[Tensor]:
    """float32 [Q, P] of every key/value head of a layer: what its queries score, scaled and with biases; -inf where a
    slot is not seen. Queries that see none are left out."""
    heads, device = len(keys_HPD), keys_HPD.device
    for head in range(heads):
        groups = [grouped(own.query_NTD, heads)[head].to(device).float() * own.scaling for own in queries]
        seen = [own.seen_HTP[min(head, len(own.seen_HTP) - 1)].to(device) for own in queries]
        seen_QP = torch.cat([own.repeat(len(group), 1) for own, group in zip(seen, groups, strict=True)])
        query_QD = torch.cat([group_GTD.flatten(0, 1) for group_GTD in groups])
        scores_QP = (query_QD @ keys_HPD[head].float().T + added_HP[head]).masked_fill(~seen_QP, -math.inf)
        yield scores_QP[(scores_QP > -math.inf).any(-1)]


def _added(text: Text, layer: int) -> Tensor:
    """float32 [H, P]: what is added to the scores of slots already; -inf where one is padding."""
    added_HP = torch.zeros_like(text.scores[layer])
    if text.prefix.bias_LBHP is not None:
        added_HP = added_HP + text.prefix.bias_LBHP[layer][0].to(added_HP)
    return added_HP
