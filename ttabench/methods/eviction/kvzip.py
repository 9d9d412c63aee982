"""KVzip keeps what the model needs to repeat the text; Attention Matching fits biases and values of the same slots.

Kim et al., arXiv 2505.23416 (section 3; released code: snu-mllab/KVzip): a text that was read is repeated behind
itself, and every slot, of whichever layer and head, is scored by the attention that its repetition pays. Zweiger et
al., arXiv 2602.16284 (sections 3.2 and 3.3; released code: adamzweiger/compaction), for the queries of the repetition.
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
"""What asks for the repetition of the first chunk, and of those that follow."""
SINK_TOKENS = 4
"""First tokens of the text, which always stay, as in kvpress, and compete with any chunk."""
REPEATED_TAIL_TOKENS = 8
"""Tokens at the end of a repeated chunk that the prompt of the next one names."""
MUST_STAY_SCORE = torch.finfo(torch.float32).max
"""Score of a slot that must stay."""


@dataclass(frozen=True)
class LayerQueries:
    """Queries of a layer that its attention is to be kept for."""

    query_NTD: Tensor
    seen_HTP: Tensor
    """bool [1 or H, T, P]: which slots of the text each of them sees."""
    scaling: float


@dataclass
class Repetition:
    """A watcher of one chunk being repeated. `text`: slots of the text, of which the chunk is a part; `chunk`: its
    first slot, and the one behind it."""

    text: int
    chunk: tuple[int, int]
    kept_queries: int = 0
    scores: dict[int, Tensor] = field(default_factory=dict)
    """float32 [H, chunk], by layer: the largest attention that each slot of the chunk receives."""
    queries: dict[int, LayerQueries] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> None:
        """Look at one layer: score its slots, and keep its queries, or as many as are asked for at even distances."""
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
        heads, slots, tokens, (first, behind) = (
            call.key.shape[1],
            call.key.shape[2],
            call.query.shape[2],
            self.chunk,
        )
        sinks = min(SINK_TOKENS, first)
        shared = (
            (0, sinks),
            (first, behind),
            (slots - tokens, slots),
        )  # the attention: sinks, chunk, repetition
        columns = torch.cat([torch.arange(*part, device=call.key.device) for part in shared])
        key_HDC = call.key[0][:, columns].float().transpose(1, 2)
        best_HC = torch.full((heads, behind - first), -1.0, device=call.key.device)
        for begin in range(0, tokens, MAX_QUERIES_PER_BLOCK):
            part = slice(begin, min(begin + MAX_QUERIES_PER_BLOCK, tokens))
            query_HXD = group_heads(call.query[0, :, part].float(), heads).flatten(1, 2)
            scores = (query_HXD @ key_HDC * call.scaling).view(
                heads, -1, part.stop - begin, len(columns)
            )
            if call.bias is not None:  # of key/value heads, or of query heads
                scores = (
                    scores
                    + group_heads(pad_bias(call.bias.float(), slots)[0][:, columns], heads)[
                        :, :, None
                    ]
                )
            hidden = ~visible_slots(call, part)[0][..., columns]
            lowest = torch.finfo(torch.float32).min
            paid = scores.masked_fill_(hidden[:, None], lowest).softmax(-1)[
                ..., sinks : sinks + behind - first
            ]
            best_HC = torch.maximum(best_HC, paid.amax((1, 2)))
        return best_HC


@dataclass(frozen=True)
class ScoredText:
    """One row with all that it kept and all that it has just read; nothing is thrown away yet."""

    prefix: Prefix
    keys: Tensor
    """[L, H, P, D]"""
    values: Tensor
    index: Tensor
    """int32 [L, H, P]: places in the text."""
    scores: Tensor
    """float32 [L, H, P]: `MUST_STAY_SCORE` where a slot must stay, -inf where it is padding or can never be seen again."""
    chunks: list[Repetition]


class KVzip(EvictingMethod[KVzipSettings]):
    """The slots of all layers and heads that the repetition of the text looks at. State: a `RaggedCache`."""

    spec = eviction.KVZIP
    cache_class = RaggedCache
    supports_batching = False
    query_tokens = 0
    """Tokens of repetitions whose queries are kept."""

    def _read(self, kept: RaggedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> RaggedCache:  # noqa: ARG002  # one row
        return self._evict(self._score(kept, ids_BT[0].tolist()))

    def _evict(self, text: ScoredText) -> RaggedCache:
        """What stays of a text."""
        return pack_slots(text, self._select_slots(text))

    def _select_slots(self, text: ScoredText) -> Tensor:
        """bool [L, H, P]: the best slots of all layers and heads together; ties go to the earlier one."""
        scores = text.scores.flatten()
        budget = (
            self.settings.kept_tokens(int(text.prefix.next_position_B))
            * self.lm.layers
            * self.lm.kv_heads
        )
        order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :budget]
        stays = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, value=True) & (
            scores > -math.inf
        )
        return stays.view_as(text.scores)

    def _score(self, kept: RaggedCache | None, ids: list[int]) -> ScoredText:
        """Read a text on top of what was kept, then repeat it chunk by chunk."""
        start = None if kept is None else kept.prefix()
        check_fits(self.lm, start, [len(ids)])
        whole = extend_prefix(self.lm, start, torch.tensor([ids], device=self.lm.device))
        before = 0 if kept is None else int(kept.counts.max())
        asked = [*self._repetitions(ids, int(whole.next_position_B), first_text=kept is None)]
        chunks, kept_queries = [], self.query_tokens // len(asked)
        for first, behind, words in asked:
            place = before + first, before + behind
            chunks.append(Repetition(before + len(ids), place, kept_queries))
            with torch.no_grad(), observe_attention(chunks[-1]):
                window = Window(self.lm, whole, 1, capacity=len(words), retain=False)
                window.feed(torch.tensor([words], device=self.lm.device))
        row = whole.map_layers(lambda layer: layer[0].to(self.lm.device))
        keys, values = torch.stack(row.keys_LBHPD), torch.stack(row.values_LBHPD)
        index_T = (
            whole.next_position_B.int()
            - len(ids)
            + torch.arange(len(ids), device=keys.device).int()
        )
        index = index_T.expand(*keys.shape[:2], -1)
        scores = torch.full(index.shape, -1.0, device=keys.device)
        for chunk in chunks:
            own = torch.stack([chunk.scores[layer].to(keys.device) for layer in range(len(keys))])
            scores[..., chunk.chunk[0] - before : chunk.chunk[1] - before] = own
        if kept is None:
            scores[..., :SINK_TOKENS] = MUST_STAY_SCORE
        else:
            assert kept.scores is not None, "what stayed has its scores"
            index = torch.cat([kept.padded(kept.index, -1)[:, 0], index], dim=2)
            scores = torch.cat([kept.padded(kept.scores, -math.inf)[:, 0], scores], dim=2)
        following = whole.next_position_B.to(index.device)
        for layer, near in get_capabilities(
            self.lm
        ).local_masks.items():  # what the next token does not see is worth nothing
            scores[layer].masked_fill_(~near(0, 0, following, index[layer].long()), -math.inf)
        return ScoredText(whole, keys, values, index, scores, chunks)

    def _repetitions(
        self, ids: list[int], held: int, *, first_text: bool
    ) -> Iterator[tuple[int, int, list[int]]]:
        """(first token, the one behind, what is read behind the text) of every chunk."""
        settings, encode = self.settings, self.lm.encode
        prompts = [
            encode(text, is_continuation=True) for text in (REPEAT_PROMPT, LATER_REPEAT_PROMPT)
        ]
        end = (
            encode("\n", is_continuation=True)
            if self.lm.chat is None
            else list(self.lm.chat.end_ids)
        )
        opening = (
            len(self.lm.start_ids) if first_text and self.lm.chat is not None else 0
        )  # scored, but not repeated
        room = (
            self.lm.max_positions - held - max(map(len, prompts)) - REPEATED_TAIL_TOKENS - len(end)
        )
        if room < 1:
            fault = f"A text of {held} tokens leaves no room to repeat it in the {self.lm.max_positions} positions"
            raise UserError(f"{fault} of {self.lm.name}.", "Read less (--task-set documents=N).")
        size = min(settings.repeat_chunk, room)
        for begin in range(opening, len(ids), size):
            chunk = ids[begin : begin + size]
            asked = (
                prompts[0]
                if begin == opening
                else [*prompts[1], *ids[max(0, begin - REPEATED_TAIL_TOKENS) : begin]]
            )
            yield begin if begin > opening else 0, begin + len(chunk), [*asked, *end, *chunk]


def pack_slots(text: ScoredText, stays_LHP: Tensor, **changed: Tensor) -> RaggedCache:
    """The slots of a row that stay; `changed`: values [S, D] or a bias [S] of theirs in place of what was read."""
    parts: dict[str, Any] = {
        name: getattr(text, name)[stays_LHP] for name in ("keys", "values", "index", "scores")
    }
    counts_L1H = stays_LHP.sum(-1, dtype=torch.int32)[:, None]
    return RaggedCache(**{**parts, **changed}, counts=counts_L1H, next=text.prefix.next_position_B)


FIT_STEPS = 60
"""Of accelerated projected gradient descent on the weights whose logarithms are biases."""
RIDGE_WEIGHT = 1e-3
"""Weight of staying near the values that were read, against that of an average slot's attention."""
MIN_WEIGHT, MAX_WEIGHT = math.exp(-3.0), math.exp(3.0)
"""Of weights: outside, few queries decide, and others see a slot too much or not at all."""


def fit_weights(columns_QS: Tensor, mass_Q: Tensor) -> Tensor:
    """[S] within bounds, so that the weighted columns have this sum: least squares, by gradient descent with
    momentum. FISTA (Beck and Teboulle 2009) with a step that is no more than 1 over the largest eigenvalue."""
    gram_SS, right_S = columns_QS.T @ columns_QS, columns_QS.T @ mass_Q
    step = 1 / gram_SS.norm().clamp(min=1e-9)
    weights_S = ahead_S = torch.ones_like(right_S)
    momentum = 1.0
    for _ in range(FIT_STEPS):
        before_S, weights_S = (
            weights_S,
            (ahead_S - step * (gram_SS @ ahead_S - right_S)).clamp(MIN_WEIGHT, MAX_WEIGHT),
        )
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead_S = weights_S + (momentum - 1) / following * (weights_S - before_S)
        momentum = following
    return weights_S


def fit_values(scores_QP: Tensor, values_PD: Tensor, picked_S: Tensor, bias_S: Tensor) -> Tensor:
    """[S, D]: values of the kept slots with which they give the output of all; near those that were read."""
    read_SD, output_QD = values_PD[picked_S], scores_QP.softmax(-1) @ values_PD
    paid_QS = (
        (scores_QP[:, picked_S] + bias_S).softmax(-1).nan_to_num()
    )  # of a query that sees none of them
    gram_SS = paid_QS.T @ paid_QS
    gram_SS.diagonal().add_(RIDGE_WEIGHT * gram_SS.diagonal().mean().clamp(min=1e-12))
    change_SD: Tensor = torch.linalg.solve(gram_SS, paid_QS.T @ (output_QD - paid_QS @ read_SD))
    return read_SD + change_SD


class AttentionMatching(KVzip):
    """State: KVzip's, with a bias of every slot."""

    spec = eviction.ATTENTION_MATCHING
    query_tokens = 1024

    @torch.no_grad()
    def _evict(self, text: ScoredText) -> RaggedCache:
        stays_LHP = self._select_slots(text)
        bias, values = [], []
        for layer in range(self.lm.layers):
            added_HP, queries = (
                torch.zeros_like(text.scores[layer]),
                [chunk.queries[layer] for chunk in text.chunks],
            )
            if (
                text.prefix.bias_LBHP is not None
            ):  # of slots that have one already; -inf where one is padding
                added_HP = added_HP + text.prefix.bias_LBHP[layer][0].to(added_HP)
            for head, scores_QP in enumerate(query_scores(queries, text.keys[layer], added_HP)):
                picked_S, values_PD = (
                    stays_LHP[layer, head].nonzero()[:, 0],
                    text.values[layer, head].float(),
                )
                if not len(picked_S) or not len(scores_QP):
                    bias_S, values_SD = (
                        torch.zeros(len(picked_S), device=picked_S.device),
                        values_PD[picked_S],
                    )
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
    """float32 [Q, P] of every key/value head of a layer: what its queries score, scaled and with biases; -inf where a
    slot is not seen. Queries that see none are left out."""
    heads, device = len(keys_HPD), keys_HPD.device
    for head in range(heads):
        groups = [
            group_heads(own.query_NTD, heads)[head].to(device).float() * own.scaling
            for own in queries
        ]
        visible_slots = [
            own.seen_HTP[min(head, len(own.seen_HTP) - 1)].to(device) for own in queries
        ]
        seen_QP = torch.cat(
            [own.repeat(len(group), 1) for own, group in zip(visible_slots, groups, strict=True)]
        )
        query_QD = torch.cat([group_GTD.flatten(0, 1) for group_GTD in groups])
        scores_QP = (query_QD @ keys_HPD[head].float().T + added_HP[head]).masked_fill(
            ~seen_QP, -math.inf
        )
        yield scores_QP[(scores_QP > -math.inf).any(-1)]
