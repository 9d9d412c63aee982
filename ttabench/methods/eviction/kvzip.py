"""KVzip keeps the slots needed to repeat the text; Attention Matching fits their biases and values.

Kim et al., arXiv 2505.23416 (section 3; released code: snu-mllab/KVzip): the text is repeated after
itself, and the attention of the repetition scores the slots of all layers and heads.
Zweiger et al., arXiv 2602.16284 (sections 3.2 and 3.3; released code: adamzweiger/compaction), with
the queries of the repetition.
Shape letters: L layers · H key/value heads · N query heads · G = N / H · T tokens of a repetition ·
    P slots of the text · C slots that compete · S slots kept · D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.attention import AttentionCall, observe_attention, pad_bias
from ttabench.lm.forward.capabilities import get_capabilities
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.window import Window
from ttabench.lm.patch import Prefix
from ttabench.methods import eviction
from ttabench.methods.eviction import KVzipSettings
from ttabench.methods.eviction.evicting import (
    MAX_QUERIES_PER_BLOCK,
    EvictingMethod,
    RaggedCache,
    group_heads,
    visible_slots,
)
from ttabench.methods.parts.kept import extend_prefix

REPEAT_PROMPT = "\n\nRepeat the previous context exactly."
LATER_REPEAT_PROMPT = "\n\nRepeat the part of the previous context exactly, starting with"
"""Prompts for the repetition of the first chunk and of later chunks."""
SINK_TOKENS = 4
"""First tokens of the text: always kept as in kvpress, and part of every chunk's softmax."""
REPEATED_TAIL_TOKENS = 8
"""Tokens at the end of a repeated chunk that the prompt of the next chunk quotes."""
MUST_STAY_SCORE = torch.finfo(torch.float32).max
"""Score of a slot that must be kept."""


@dataclass(frozen=True)
class LayerQueries:
    """Attention queries of a layer, used to fit biases and values."""

    query_NTD: Tensor
    seen_HTP: Tensor
    """bool [1 or H, T, P]: mask of the text's slots that each query sees."""
    scaling: float


@dataclass
class Repetition:
    """Attention observer of the repetition of one chunk."""

    text: int
    """Slots of the text."""
    chunk: tuple[int, int]
    """First slot of the chunk, and the slot after its end."""
    kept_queries: int = 0
    scores: dict[int, Tensor] = field(default_factory=dict)
    """float32 [H, chunk], by layer: maximum attention that each slot of the chunk receives."""
    queries: dict[int, LayerQueries] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> None:
        """Score the slots of one layer, and keep up to `kept_queries` evenly spaced queries."""
        self.scores[call.layer] = self._score(call)
        if not self.kept_queries:
            return
        tokens = call.query.shape[2]
        places = torch.linspace(
            0, tokens - 1, min(tokens, self.kept_queries), device=call.query.device
        ).long()
        seen_HTP = visible_slots(call, slice(None))[0][:, places, : self.text]
        self.queries[call.layer] = LayerQueries(
            call.query[0, :, places].detach(), seen_HTP, call.scaling
        )

    def _score(self, call: AttentionCall) -> Tensor:
        heads, slots = call.key.shape[1:3]
        tokens = call.query.shape[2]
        first, end = self.chunk
        sinks = min(SINK_TOKENS, first)
        # the softmax is over sinks, chunk and repetition
        shared = (0, sinks), (first, end), (slots - tokens, slots)
        columns = torch.cat([torch.arange(*part, device=call.key.device) for part in shared])
        key_HDC = call.key[0][:, columns].float().transpose(1, 2)
        best_HC = torch.full((heads, end - first), -1.0, device=call.key.device)
        for begin in range(0, tokens, MAX_QUERIES_PER_BLOCK):
            part = slice(begin, min(begin + MAX_QUERIES_PER_BLOCK, tokens))
            query_HXD = group_heads(call.query[0, :, part].float(), heads).flatten(1, 2)
            scores = (query_HXD @ key_HDC * call.scaling).view(
                heads, -1, part.stop - begin, len(columns)
            )
            if call.bias is not None:  # per key/value head or per query head
                bias = pad_bias(call.bias.float(), slots)[0][:, columns]
                scores = scores + group_heads(bias, heads)[:, :, None]
            hidden = ~visible_slots(call, part)[0][..., columns]
            lowest = torch.finfo(torch.float32).min
            weights = scores.masked_fill_(hidden[:, None], lowest).softmax(-1)
            chunk_weights = weights[..., sinks : sinks + end - first]
            best_HC = torch.maximum(best_HC, chunk_weights.amax((1, 2)))
        return best_HC


@dataclass(frozen=True)
class ScoredText:
    """The kept slots and the new text of one sequence with scores, before the eviction."""

    prefix: Prefix
    keys: Tensor
    """[L, H, P, D]"""
    values: Tensor
    index: Tensor
    """int32 [L, H, P]: positions in the text."""
    scores: Tensor
    """float32 [L, H, P]: `MUST_STAY_SCORE` to keep a slot, -inf for padding and out of view."""
    chunks: list[Repetition]


class KVzip(EvictingMethod[KVzipSettings]):
    """Slots with the most attention when the text is repeated. State: `RaggedCache`."""

    spec = eviction.KVZIP
    cache_class = RaggedCache
    supports_batching = False
    query_tokens = 0
    """Number of tokens of the repetitions with kept queries."""

    def _read(self, kept: RaggedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> RaggedCache:  # noqa: ARG002
        return self._evict(self._score(kept, ids_BT[0].tolist()))

    def _evict(self, text: ScoredText) -> RaggedCache:
        return pack_slots(text, self._select_slots(text))

    def _select_slots(self, text: ScoredText) -> Tensor:
        """Return the mask of the best slots over all layers and heads, bool [L, H, P].

        The earlier slot wins a tie.
        """
        scores = text.scores.flatten()
        kept_tokens = self.settings.kept_tokens(int(text.prefix.next_position_B))
        budget = kept_tokens * self.lm.layers * self.lm.kv_heads
        order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :budget]
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, value=True)
        return (best & (scores > -math.inf)).view_as(text.scores)

    def _score(self, kept: RaggedCache | None, ids: list[int]) -> ScoredText:
        """Read a text after the kept cache, then repeat it chunk by chunk."""
        start = None if kept is None else kept.prefix()
        check_fits(self.lm, start, [len(ids)])
        whole = extend_prefix(self.lm, start, torch.tensor([ids], device=self.lm.device))
        before = 0 if kept is None else int(kept.counts.max())
        repetitions = [*self._repetitions(ids, int(whole.next_position_B), first_text=kept is None)]
        chunks = []
        kept_queries = self.query_tokens // len(repetitions)
        for first, end, tokens in repetitions:
            place = before + first, before + end
            chunks.append(Repetition(before + len(ids), place, kept_queries))
            with torch.no_grad(), observe_attention(chunks[-1]):
                window = Window(self.lm, whole, 1, capacity=len(tokens), retain=False)
                window.feed(torch.tensor([tokens], device=self.lm.device))
        row = whole.map_layers(lambda layer: layer[0].to(self.lm.device))
        keys, values = torch.stack(row.keys_LBHPD), torch.stack(row.values_LBHPD)
        steps_T = torch.arange(len(ids), device=keys.device).int()
        index_T = whole.next_position_B.int() - len(ids) + steps_T
        index = index_T.expand(*keys.shape[:2], -1)
        scores = torch.full(index.shape, -1.0, device=keys.device)
        for chunk in chunks:
            part = torch.stack([chunk.scores[layer].to(keys.device) for layer in range(len(keys))])
            scores[..., chunk.chunk[0] - before : chunk.chunk[1] - before] = part
        if kept is None:
            scores[..., :SINK_TOKENS] = MUST_STAY_SCORE
        else:
            assert kept.scores is not None, "the kept cache has no scores"
            index = torch.cat([kept.padded(kept.index, -1)[:, 0], index], dim=2)
            scores = torch.cat([kept.padded(kept.scores, -math.inf)[:, 0], scores], dim=2)
        following = whole.next_position_B.to(index.device)
        # drop slots of local attention layers that the next token does not see
        for layer, near in get_capabilities(self.lm).local_masks.items():
            scores[layer].masked_fill_(~near(0, 0, following, index[layer].long()), -math.inf)
        return ScoredText(whole, keys, values, index, scores, chunks)

    def _repetitions(
        self, ids: list[int], position: int, *, first_text: bool
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (first token, token after the end, tokens to read) of every chunk."""
        encode = self.lm.encode
        first_prompt = encode(REPEAT_PROMPT, is_continuation=True)
        later_prompt = encode(LATER_REPEAT_PROMPT, is_continuation=True)
        opening = 0  # tokens that are scored, but not repeated
        if self.lm.chat is None:
            end = encode("\n", is_continuation=True)
        else:
            end = list(self.lm.chat.end_ids)
            opening = len(self.lm.start_ids) if first_text else 0
        prompt_tokens = max(len(first_prompt), len(later_prompt)) + REPEATED_TAIL_TOKENS + len(end)
        limit = self.lm.max_positions - position - prompt_tokens
        if limit < 1:
            fault = (
                f"{self.lm.name} has {self.lm.max_positions} positions, too few to repeat a text"
            )
            raise UserError(f"{fault} of {position} tokens.", "Use --task-set documents=N.")
        size = min(self.settings.repeat_chunk, limit)
        for begin in range(opening, len(ids), size):
            chunk = ids[begin : begin + size]
            if begin == opening:
                yield 0, begin + len(chunk), [*first_prompt, *end, *chunk]
            else:
                tail = ids[max(0, begin - REPEATED_TAIL_TOKENS) : begin]
                yield begin, begin + len(chunk), [*later_prompt, *tail, *end, *chunk]


def pack_slots(text: ScoredText, stays_LHP: Tensor, **changed: Tensor) -> RaggedCache:
    """Pack the kept slots; `changed` replaces their values [S, D] or bias [S]."""
    parts: dict[str, Any] = {
        name: getattr(text, name)[stays_LHP] for name in ("keys", "values", "index", "scores")
    }
    counts_L1H = stays_LHP.sum(-1, dtype=torch.int32)[:, None]
    return RaggedCache(**{**parts, **changed}, counts=counts_L1H, next=text.prefix.next_position_B)


FIT_STEPS = 60
"""Steps of accelerated projected gradient descent on weights; biases are their logarithms."""
RIDGE_WEIGHT = 1e-3
"""Ridge penalty on changes of values, relative to the mean squared attention of a slot."""
MIN_WEIGHT, MAX_WEIGHT = math.exp(-3.0), math.exp(3.0)
"""Bounds of weights; beyond them the fit overfits a few queries."""


def fit_weights(columns_QS: Tensor, mass_Q: Tensor) -> Tensor:
    """Fit bounded weights [S], so that the weighted columns sum to `mass_Q` (least squares).

    The method is FISTA (Beck and Teboulle 2009).
    """
    gram_SS = columns_QS.T @ columns_QS
    right_S = columns_QS.T @ mass_Q
    step = 1 / gram_SS.norm().clamp(min=1e-9)  # at most 1 over the largest eigenvalue
    weights_S = ahead_S = torch.ones_like(right_S)
    momentum = 1.0
    for _ in range(FIT_STEPS):
        before_S = weights_S
        gradient_S = gram_SS @ ahead_S - right_S
        weights_S = (ahead_S - step * gradient_S).clamp(MIN_WEIGHT, MAX_WEIGHT)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead_S = weights_S + (momentum - 1) / following * (weights_S - before_S)
        momentum = following
    return weights_S


def fit_values(scores_QP: Tensor, values_PD: Tensor, picked_S: Tensor, bias_S: Tensor) -> Tensor:
    """Fit values [S, D] of the kept slots to the output of all slots, by ridge regression."""
    read_SD = values_PD[picked_S]
    output_QD = scores_QP.softmax(-1) @ values_PD
    # NaN if a query sees no kept slot
    weights_QS = (scores_QP[:, picked_S] + bias_S).softmax(-1).nan_to_num()
    gram_SS = weights_QS.T @ weights_QS
    gram_SS.diagonal().add_(RIDGE_WEIGHT * gram_SS.diagonal().mean().clamp(min=1e-12))
    residual_QD = output_QD - weights_QS @ read_SD
    change_SD: Tensor = torch.linalg.solve(gram_SS, weights_QS.T @ residual_QD)
    return read_SD + change_SD


class AttentionMatching(KVzip):
    """Attention Matching. State: KVzip's, with a bias for every slot."""

    spec = eviction.ATTENTION_MATCHING
    query_tokens = 1024

    @torch.no_grad()
    def _evict(self, text: ScoredText) -> RaggedCache:
        stays_LHP = self._select_slots(text)
        bias, values = [], []
        for layer in range(self.lm.layers):
            added_HP = torch.zeros_like(text.scores[layer])
            queries = [chunk.queries[layer] for chunk in text.chunks]
            if text.prefix.bias_LBHP is not None:  # earlier biases, -inf for padding
                added_HP = added_HP + text.prefix.bias_LBHP[layer][0].to(added_HP)
            for head, scores_QP in enumerate(query_scores(queries, text.keys[layer], added_HP)):
                picked_S = stays_LHP[layer, head].nonzero()[:, 0]
                values_PD = text.values[layer, head].float()
                if not len(picked_S) or not len(scores_QP):
                    bias_S = torch.zeros(len(picked_S), device=picked_S.device)
                    values_SD = values_PD[picked_S]
                else:
                    columns_QP = (scores_QP - scores_QP.amax(-1, keepdim=True)).exp()
                    bias_S = fit_weights(columns_QP[:, picked_S], columns_QP.sum(-1)).log()
                    values_SD = fit_values(scores_QP, values_PD, picked_S, bias_S)
                bias.append(added_HP[head, picked_S] + bias_S)
                values.append(values_SD)
        return pack_slots(
            text, stays_LHP, bias=torch.cat(bias), values=torch.cat(values).to(text.values.dtype)
        )


def query_scores(
    queries: Sequence[LayerQueries], keys_HPD: Tensor, added_HP: Tensor
) -> Iterator[Tensor]:
    """Yield the attention scores of every key/value head of a layer, float32 [Q, P].

    Scores are scaled, include biases, and are -inf for hidden slots. Queries that see no slot are
    omitted.
    """
    heads, device = len(keys_HPD), keys_HPD.device
    for head in range(heads):
        groups, masks = [], []
        for part in queries:
            group_GTD = group_heads(part.query_NTD, heads)[head].to(device).float() * part.scaling
            seen_TP = part.seen_HTP[min(head, len(part.seen_HTP) - 1)].to(device)
            groups.append(group_GTD.flatten(0, 1))
            masks.append(seen_TP.repeat(len(group_GTD), 1))
        scores_QP = torch.cat(groups) @ keys_HPD[head].float().T + added_HP[head]
        scores_QP = scores_QP.masked_fill(~torch.cat(masks), -math.inf)
        yield scores_QP[(scores_QP > -math.inf).any(-1)]
