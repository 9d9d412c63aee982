"""Attention Matching: the slots that KVzip keeps, with biases and values that give the attention of all of them.

Zweiger et al., arXiv 2602.16284 (released code: adamzweiger/compaction), sections 3.2 and 3.3: the queries that
attention is matched for are those of the text's repetition, of questions that the model asks itself, or random.
Shape letters: L layers · H key/value heads · N query heads · G = N / H · T tokens · P slots · S slots kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ttabench.lm.model import LM
from ttabench.lm.patch import Patch
from ttabench.lm.verbs.generation import generate
from ttabench.methods import eviction
from ttabench.methods.eviction.evicted_cache import RaggedCache
from ttabench.methods.eviction.kvzip import STAYS, RepeatingMethod, Text, best, packed
from ttabench.methods.eviction.repeating import Queries, Repetition, grouped, repeated
from ttabench.methods.eviction.settings import FIT_STEPS, MatchingSettings

LOWEST, HIGHEST = math.exp(-3.0), math.exp(3.0)
"""Of weights: outside, few queries decide, and others see a slot too much or not at all."""
ROUNDS = 16
"""In which matching pursuit picks all of its slots: weights are fitted anew between them."""


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

    def exponentials(self) -> Tensor:
        """[Q, P], relative to the largest of each query."""
        return (self.scores_QP - self.scores_QP.amax(-1, keepdim=True)).exp()


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


def pursued(target: Target, count: int, first_S: Tensor) -> Tensor:
    """int64 [count], ascending: slots picked one group after the other, those that fit best what mass is missing.

    Orthogonal matching pursuit on the mass of attention; `first_S` are picked before.
    """
    columns_QP = target.exponentials()
    mass_Q = columns_QP.sum(-1)
    picked_S, size = first_S[:count], max(1, math.ceil(count / ROUNDS))
    missing_Q = mass_Q
    while len(picked_S) < count:
        if len(picked_S):
            chosen_QS = columns_QP[:, picked_S]
            missing_Q = mass_Q - chosen_QS @ weights_of(chosen_QS, mass_Q)
        fit_P = missing_Q @ columns_QP
        fit_P[picked_S] = -math.inf
        picked_S = torch.cat([picked_S, fit_P.topk(min(size, count - len(picked_S))).indices])
    return picked_S.sort().values


SELF_STUDY = (
    "\n\nQuestions about the text above, and their answers:\n",
    "\n\nA summary of the text above:\n",
    "\n\nThe facts of the text above as a list:\n",
    "\n\nEverything in the text above that has to do with names, places and numbers:\n",
)
"""What the model goes on from where it studies a text by itself."""


class AttentionMatching(RepeatingMethod[MatchingSettings]):
    """State: KVzip's, with a bias of every slot."""

    spec = eviction.ATTENTION_MATCHING

    def __init__(self, lm: LM, settings: MatchingSettings) -> None:
        super().__init__(lm, settings)
        self.query_tokens = settings.query_tokens

    @torch.no_grad()
    def _kept(self, text: Text) -> RaggedCache:
        evenly = self.settings.keys == "uniform"
        stays_LHP = best(text.scores, self._room(text.prefix.next_position_B)) if evenly else self._stays(text)
        bias, values = [], []
        for layer, queries in enumerate(self._queries(text)):
            added_HP = _added(text, layer)
            for head, target in enumerate(_targets(text, layer, queries, added_HP)):
                picked_S = self._picked(target, text.scores[layer, head], stays_LHP[layer, head])
                bias_S, values_SD = self._fitted(target, picked_S)
                stays_LHP[layer, head] = False
                stays_LHP[layer, head, picked_S] = True
                bias.append(added_HP[head, picked_S] + bias_S)
                values.append(values_SD)
        return packed(text, stays_LHP, bias=torch.cat(bias), values=torch.cat(values).to(text.values.dtype))

    def _picked(self, target: Target, scores_P: Tensor, zipped_P: Tensor) -> Tensor:
        """int64 [S], ascending: the slots of a head that stay; `zipped_P` are those that KVzip keeps."""
        if self.settings.keys == "kvzip" or not len(target.scores_QP):
            return zipped_P.nonzero()[:, 0]
        if self.settings.keys == "omp":
            return pursued(target, int(zipped_P.sum()), (scores_P == STAYS).nonzero()[:, 0])
        paid_P = target.scores_QP.softmax(-1).square().mean(0)
        ranked_P = torch.where(scores_P.abs() >= STAYS, scores_P, paid_P)
        return best(ranked_P, int(zipped_P.sum())).nonzero()[:, 0]

    def _fitted(self, target: Target, picked_S: Tensor) -> tuple[Tensor, Tensor]:
        """Bias and values of the kept slots of one head."""
        bias_S, read_SD = torch.zeros(len(picked_S), device=picked_S.device), target.values_PD[picked_S]
        if not len(picked_S) or not len(target.scores_QP):
            return bias_S, read_SD
        if self.settings.fit_bias:
            columns_QP = target.exponentials()
            bias_S = weights_of(columns_QP[:, picked_S], columns_QP.sum(-1)).log()
        if not self.settings.fit_values:
            return bias_S, read_SD
        return bias_S, values_of(target, picked_S, bias_S, self.settings.ridge)

    def _queries(self, text: Text) -> Iterator[list[Queries]]:
        """The queries of every layer that its attention is matched for."""
        drawn = torch.Generator(self.lm.device).manual_seed(self.settings.seed)
        seen = text.chunks
        if self.settings.queries == "self-study":
            seen = [self._studied(text, number, drawn) for number in range(len(SELF_STUDY))]
        for layer in range(self.lm.layers):
            own = [chunk.queries[layer] for chunk in seen]
            yield [_random(one, drawn) for one in own] if self.settings.queries == "random" else own

    def _studied(self, text: Text, number: int, drawn: torch.Generator) -> Repetition:
        """The queries of what the model writes behind a text and one of the openings."""

        def pick(logits_BV: Tensor) -> Tensor:
            return torch.multinomial(logits_BV.float().softmax(-1), 1, generator=drawn)[:, 0]

        share = max(1, self.settings.query_tokens // len(SELF_STUDY))
        opening = self.lm.encode(SELF_STUDY[number], follows=True)
        (written,) = generate(self.lm, Patch(prefix=text.prefix), [opening], max_new_tokens=share, pick=pick)
        plain = replace(self.settings, score="max")
        studied = Repetition(plain, text.keys.shape[2], (0, 0), kept_queries=share)
        repeated(self.lm, text.prefix, [*opening, *written], studied)
        return studied


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


def _random(like: Queries, drawn: torch.Generator) -> Queries:
    """Normal numbers with the mean and the spread that each channel of these queries has."""
    query_NTD = like.query_NTD.float()
    noise_NTD = torch.randn(query_NTD.shape, generator=drawn, device=drawn.device).to(query_NTD.device)
    spread_N1D = query_NTD.std(1, keepdim=True, correction=0)
    return replace(like, query_NTD=query_NTD.mean(1, keepdim=True) + spread_N1D * noise_NTD)
