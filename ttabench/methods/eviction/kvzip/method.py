"""KVzip and Attention Matching: eviction by the attention that a repetition of the text pays.

Kim et al., arXiv 2505.23416 (section 3; released code: snu-mllab/KVzip): the text is repeated after
itself. A slot of any layer and head is scored by the attention it receives from the repetition.

Zweiger et al., arXiv 2602.16284 (sections 3.2 and 3.3; released code: adamzweiger/compaction), with
the attention queries of the repetition. It fits biases and values of the kept slots, so that
attention over them approximates attention over all slots.

Shape letters: L layers · H key/value heads · N query heads · G = N / H · T tokens of a repetition ·
    P slots of the text · C columns of the softmax, or slots of a chunk · S slots kept · Q attention
    queries of one key/value head · X = G * queries of a block · D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.lm.attention import AttentionCall, observe_attention
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.window import Window
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix
from ttabench.methods.eviction.cache import EvictedCache, RaggedCache, drop_invisible, pack_slots
from ttabench.methods.eviction.evicting import EvictingMethod
from ttabench.methods.eviction.kvzip import (
    ATTENTION_MATCHING,
    FIT_STEPS,
    KVZIP,
    MATCHED_TOKENS,
    KVzipSettings,
)
from ttabench.methods.eviction.observers import attention_weights, group_heads, visible_slots
from ttabench.methods.eviction.shares import head_budgets, load_shares, select_slots
from ttabench.methods.parts.kept import extend_prefix

KVzipT = TypeVar("KVzipT", bound=KVzipSettings)

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
    """Number of slots before the repetition: kept slots and the new text."""
    heads: int
    """Key/value heads of the cache."""
    chunk: tuple[int, int]
    """First slot of the chunk, and the slot after its end."""
    kept_queries: int = 0
    """Maximum number of attention queries to store per layer."""
    scores: dict[int, Tensor] = field(default_factory=dict)
    """float32 [H, chunk], by layer: maximum attention that each slot of the chunk receives."""
    queries: dict[int, LayerQueries] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> None:
        """Score the slots of one layer, and keep up to `kept_queries` evenly spaced queries."""
        scores = self._score(call)
        if call.is_sharing:
            scores = torch.maximum(scores, self.scores[call.layer].to(scores.device))
        self.scores[call.layer] = scores
        if call.is_sharing or not self.kept_queries:
            return
        tokens = call.query.shape[2]
        sampled = torch.linspace(
            0, tokens - 1, min(tokens, self.kept_queries), device=call.query.device
        ).long()
        seen_HTP = visible_slots(call, slice(None))[0][:, sampled, : self.text]
        self.queries[call.layer] = LayerQueries(
            call.query[0, :, sampled].detach(), seen_HTP, call.scaling
        )

    def _score(self, call: AttentionCall) -> Tensor:
        slots, tokens = call.key.shape[2], call.query.shape[2]
        first, end = self.chunk
        sinks = min(SINK_TOKENS, first)
        # the softmax is over sinks, chunk and repetition only
        spans = (0, sinks), (first, end), (slots - tokens, slots)
        columns = torch.cat([torch.arange(*span, device=call.key.device) for span in spans])
        call = replace(call, query=call.query.float(), key=call.key.float())
        blocks = [
            weights[0, ..., sinks : sinks + end - first].amax((1, 2))
            for _, weights in attention_weights(call, range(tokens), columns)
        ]
        # several heads of attention may share one latent of the cache
        return group_heads(torch.stack(blocks).amax(0), self.heads).amax(1)


@dataclass(frozen=True)
class ReadText:
    """A text that was read after the kept cache of one sequence."""

    prefix: Prefix
    """Kept cache and text."""
    scores: Tensor
    """float32 [L, H, T], for every token of the text."""
    repetitions: Sequence[Repetition] = ()


class KVzip(EvictingMethod[KVzipT]):
    """Eviction that keeps the slots with the most attention from a repetition of the text.

    State: `RaggedCache`.
    """

    spec = KVZIP
    cache_class = RaggedCache
    supports_batching = False
    query_tokens = 0
    """Number of attention queries to store in all repetitions together."""

    def __init__(self, lm: LM, settings: KVzipT) -> None:
        super().__init__(lm, settings)
        self._shares_LH = load_shares(lm, settings.shares)

    def _read(self, kept: RaggedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> RaggedCache:  # noqa: ARG002
        start = None if kept is None else kept.prefix()
        check_fits(self.lm, start, [ids_BT.shape[1]])
        text = self.score_text(start, ids_BT)
        return self._evict(text, self._join(kept, text))

    def _evict(self, text: ReadText, cache: EvictedCache) -> RaggedCache:  # noqa: ARG002
        return pack_slots(cache, self._select_slots(cache))

    def _select_slots(self, cache: EvictedCache) -> Tensor:
        """Return the mask of the slots that are kept, bool [L, H, P]."""
        assert cache.scores is not None, "slots have scores"
        scores_LHP = cache.scores[:, 0]
        heads = scores_LHP.shape[0] * scores_LHP.shape[1]
        budget = self.settings.kept_tokens(int(cache.next)) * heads
        return select_slots(scores_LHP, budget, head_budgets(self._shares_LH, scores_LHP, budget))

    def score_text(self, start: Prefix | None, ids_BT: Tensor) -> ReadText:
        """Read a text after a prefix, then repeat it chunk by chunk. The highest scores are kept."""
        ids = ids_BT[0].tolist()
        prefix = extend_prefix(self.lm, start, ids_BT)
        heads, slots = prefix.keys_LBHPD[0].shape[1:3]
        kept_slots = slots - len(ids)
        planned = [*self._repetitions(ids, int(prefix.next_position_B), first_text=start is None)]
        kept_queries = self.query_tokens // len(planned)
        repetitions = []
        scores = torch.full((len(prefix.keys_LBHPD), heads, len(ids)), -1.0, device=self.lm.device)
        for first, end, tokens in planned:
            chunk_slots = kept_slots + first, kept_slots + end
            repetition = Repetition(slots, heads, chunk_slots, kept_queries)
            with torch.no_grad(), observe_attention(repetition):
                window = Window(self.lm, prefix, 1, capacity=len(tokens), retain=False)
                window.feed(torch.tensor([tokens], device=self.lm.device))
            for layer, part_HC in repetition.scores.items():
                scores[layer, :, first:end] = part_HC
            repetitions.append(repetition)
        return ReadText(prefix, scores, repetitions)

    def _join(self, kept: RaggedCache | None, text: ReadText) -> EvictedCache:
        """Return kept slots and text as one cache of one sequence, with scores.

        Scores are `MUST_STAY_SCORE` for slots that must be kept, and -inf for padding.
        """
        prefix, scores = text.prefix, text.scores
        row = prefix.map_layers(lambda layer: layer.to(self.lm.device))
        keys, values = torch.stack(row.keys_LBHPD), torch.stack(row.values_LBHPD)
        offset_T = torch.arange(scores.shape[-1], device=keys.device).int()
        index_T = prefix.next_position_B.int().to(keys.device) - len(offset_T) + offset_T
        index = index_T.expand(scores.shape)[:, None]
        scores = scores[:, None]
        if kept is None:
            scores[..., :SINK_TOKENS] = MUST_STAY_SCORE
        else:
            assert kept.scores is not None, "the kept cache has no scores"
            index = torch.cat([kept.padded(kept.index, -1), index], dim=3)
            scores = torch.cat([kept.padded(kept.scores, -math.inf), scores], dim=3)
        whole = EvictedCache(
            keys,
            values,
            index,
            prefix.next_position_B.to(keys.device),
            scores,
            model_cache=prefix.model_cache,
        )
        return drop_invisible(self.lm, whole)

    def _repetitions(
        self, ids: list[int], position: int, *, first_text: bool
    ) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (first token, token after the last, ids of prompt and text) of every chunk."""
        encode = self.lm.encode
        first_prompt = encode(REPEAT_PROMPT, is_continuation=True)
        later_prompt = encode(LATER_REPEAT_PROMPT, is_continuation=True)
        opening = 0  # tokens that are scored with the first chunk, but not repeated
        if self.lm.chat is None:
            end = encode("\n", is_continuation=True)
        else:
            end = list(self.lm.chat.end_ids)
            opening = len(self.lm.start_ids) if first_text else 0
        prompt_tokens = max(len(first_prompt), len(later_prompt)) + REPEATED_TAIL_TOKENS + len(end)
        limit = self.lm.max_positions - position - prompt_tokens
        if limit < 1:
            fault = f"The {self.lm.position_limit} are too few to repeat {position} tokens."
            raise UserError(fault, "Use --task-set documents=N.")
        size = min(self.settings.repeat_chunk, limit)
        for begin in range(opening, len(ids), size):
            chunk = ids[begin : begin + size]
            if begin == opening:
                yield 0, begin + len(chunk), [*first_prompt, *end, *chunk]
            else:
                tail = ids[max(0, begin - REPEATED_TAIL_TOKENS) : begin]
                yield begin, begin + len(chunk), [*later_prompt, *tail, *end, *chunk]


RIDGE_WEIGHT = 1e-3
"""Ridge penalty on changes of values, relative to the mean squared attention of a slot."""
MIN_WEIGHT, MAX_WEIGHT = math.exp(-3.0), math.exp(3.0)
"""Bounds of weights; beyond them the fit overfits a few queries."""


def fit_weights(columns_QS: Tensor, mass_Q: Tensor) -> Tensor:
    """Fit bounded weights [S] by least squares: columns_QS @ weights_S approximates `mass_Q`.

    `mass_Q`: sum of exp(score) over all slots. Solver: FISTA (Beck and Teboulle 2009).
    """
    gram_SS = columns_QS.T @ columns_QS
    rhs_S = columns_QS.T @ mass_Q
    step = 1 / gram_SS.norm().clamp(min=1e-9)  # at most 1 over the largest eigenvalue
    weights_S = lookahead_S = torch.ones_like(rhs_S)
    momentum = 1.0
    for _ in range(FIT_STEPS):
        previous_S = weights_S
        gradient_S = gram_SS @ lookahead_S - rhs_S
        weights_S = (lookahead_S - step * gradient_S).clamp(MIN_WEIGHT, MAX_WEIGHT)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        lookahead_S = weights_S + (momentum - 1) / next_momentum * (weights_S - previous_S)
        momentum = next_momentum
    return weights_S


def fit_values(scores_QP: Tensor, values_PD: Tensor, picked_S: Tensor, bias_S: Tensor) -> Tensor:
    """Fit values [S, D] of the kept slots to the output of all slots, by ridge regression."""
    kept_SD = values_PD[picked_S]
    output_QD = scores_QP.softmax(-1) @ values_PD
    # NaN if a query sees no kept slot
    weights_QS = (scores_QP[:, picked_S] + bias_S).softmax(-1).nan_to_num()
    gram_SS = weights_QS.T @ weights_QS
    gram_SS.diagonal().add_(RIDGE_WEIGHT * gram_SS.diagonal().mean().clamp(min=1e-12))
    residual_QD = output_QD - weights_QS @ kept_SD
    change_SD: Tensor = torch.linalg.solve(gram_SS, weights_QS.T @ residual_QD)
    return kept_SD + change_SD


class AttentionMatching(KVzip[KVzipSettings]):
    """KVzip's selection of slots, with fitted biases and values (Attention Matching).

    State: `RaggedCache` with a bias for every slot.
    """

    spec = ATTENTION_MATCHING
    required_capabilities = (*KVzip.required_capabilities, "plain_keys")
    query_tokens = MATCHED_TOKENS

    @torch.no_grad()
    def _evict(self, text: ReadText, cache: EvictedCache) -> RaggedCache:
        is_kept_LHP = self._select_slots(cache)
        bias, values = [], []
        for layer, (keys_HPD, values_HPD) in enumerate(
            zip(cache.keys[:, 0], cache.values[:, 0], strict=True)
        ):
            earlier_bias_HP = torch.zeros(keys_HPD.shape[:2], device=keys_HPD.device)
            queries = [repetition.queries[layer] for repetition in text.repetitions]
            if text.prefix.bias_LBHP is not None:  # earlier biases, -inf for padding
                earlier_bias_HP = earlier_bias_HP + text.prefix.bias_LBHP[layer][0].to(
                    earlier_bias_HP
                )
            for head, scores_QP in enumerate(query_scores(queries, keys_HPD, earlier_bias_HP)):
                kept_S = is_kept_LHP[layer, head].nonzero()[:, 0]
                values_PD = values_HPD[head].float()
                if not len(kept_S) or not len(scores_QP):
                    bias_S = torch.zeros(len(kept_S), device=kept_S.device)
                    values_SD = values_PD[kept_S]
                else:
                    exp_scores_QP = (scores_QP - scores_QP.amax(-1, keepdim=True)).exp()
                    bias_S = fit_weights(exp_scores_QP[:, kept_S], exp_scores_QP.sum(-1)).log()
                    values_SD = fit_values(scores_QP, values_PD, kept_S, bias_S)
                bias.append(earlier_bias_HP[head, kept_S] + bias_S)
                values.append(values_SD)
        return pack_slots(
            cache,
            is_kept_LHP,
            bias=torch.cat(bias),
            values=torch.cat(values).to(cache.values.dtype),
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
