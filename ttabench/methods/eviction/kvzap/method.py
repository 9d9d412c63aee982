"""KVzap: KVzip's scores, predicted from the input of attention while the text is read once.

Jégou and Jeblick, arXiv 2601.07891; the gate is Fast KVzip's (Kim et al., arXiv 2601.17668). The
released code of both is in kvpress. A linear scorer is fitted in closed form (ridge regression),
the others by gradient descent on the same squared error of log scores.

Shape letters: L layers · H key/value heads · G query heads per key/value head · T tokens ·
    C hidden size of the model · F = C + 1 · X sinks of a gate · D features of a gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Episode
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.model import LM
from ttabench.lm.patch import Prefix
from ttabench.methods.eviction.cache import EvictedCache
from ttabench.methods.eviction.kvzap import GATE_FEATURES, GATE_SINKS, KVZAP, KVzapSettings
from ttabench.methods.eviction.kvzip.method import MUST_STAY_SCORE, SINK_TOKENS, KVzip, ReadText
from ttabench.methods.eviction.observers import map_inputs
from ttabench.methods.parts.kept import extend_prefix
from ttabench.methods.parts.settings import in_tokens
from ttabench.methods.trainable import Trainable

MIN_SCORE = 1e-6
"""Addition to a score before its logarithm: smaller attention counts as none."""
RIDGE_WEIGHT = 1e-4
"""Ridge penalty, relative to the mean square of each feature."""


Example: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Inputs of attention [L, T, C], log scores [L, T, H], and weights [L, T, 1] of a text, float32.

A weight is 0 for a token that the next token does not see in a local layer, else 1."""


class Gate(nn.Module):
    """Gate of Fast KVzip: attention of a token to itself against learned sinks.

    Parameters are named as in the released files.
    """

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, heads * groups * GATE_FEATURES)
        self.k_proj = nn.Linear(width, heads * GATE_FEATURES, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(GATE_FEATURES, eps=1e-6) for _ in range(2))
        self.k_base = nn.Parameter(torch.zeros(heads, 1, GATE_SINKS, GATE_FEATURES))
        self.b = nn.Parameter(torch.zeros(heads, 1, groups))

    def forward(self, x_TC: Tensor) -> Tensor:
        """Return log scores [T, H]."""
        query_THGD = self.q_norm(self._split(self.q_proj(x_TC)))
        key_TH1D = self.k_norm(self._split(self.k_proj(x_TC)))
        scale = GATE_FEATURES**-0.5
        own_THG = (query_THGD * key_TH1D).sum(-1) * scale + self.b[:, 0]
        sinks_THG = (
            torch.einsum("thgd,hxd->thgx", query_THGD, self.k_base[:, 0]).mul(scale).logsumexp(-1)
        )
        return torch.sigmoid(own_THG - sinks_THG).mean(-1).clamp(min=MIN_SCORE).log()

    def _split(self, x_TX: Tensor) -> Tensor:
        return x_TX.view(len(x_TX), self.heads, -1, GATE_FEATURES)


def build_scorer(lm: LM, settings: KVzapSettings) -> nn.Module:
    """Build the predictor of a layer, a map from inputs [T, C] to log scores [T, H]."""
    width, heads = lm.hidden_size, lm.kv_heads
    if settings.scorer == "gate":
        return Gate(width, heads, lm.heads // heads)
    if settings.scorer == "linear":
        return nn.Linear(width, heads)
    return nn.Sequential(
        nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, heads)
    )


class KVzap(Trainable[KVzapSettings], KVzip[KVzapSettings]):
    """Eviction that keeps the slots with the highest predicted scores of KVzip.

    State: `RaggedCache`.
    """

    spec = KVZAP

    def __init__(self, lm: LM, settings: KVzapSettings) -> None:
        super().__init__(lm, settings)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            scorers = [build_scorer(lm, settings) for _ in lm.kv_layers]
        self.layers = nn.ModuleList(scorers).to(lm.device)
        self._sums: dict[str, Tensor] = {}
        if settings.threshold is not None:
            self.growth = "linear"

    def modules(self) -> nn.ModuleDict:
        """Return the scorers of all layers."""
        return nn.ModuleDict({"layers": self.layers})

    def evicts_nothing(self, tokens: int) -> bool:
        """Return True if the budget covers the context; False with a threshold."""
        return self.settings.threshold is None and super().evicts_nothing(tokens)

    def score_text(self, start: Prefix | None, ids_BT: Tensor) -> ReadText:
        """Read a text after a prefix, and predict the log score of every token."""
        with torch.no_grad(), map_inputs(self.lm, self._predict) as parts:
            prefix = extend_prefix(self.lm, start, ids_BT)
        layers = [torch.cat(part).T.to(self.lm.device) for part in parts]
        return ReadText(prefix, torch.stack(layers))

    def _predict(self, layer: int, x_BTC: Tensor) -> Tensor:
        scores_TH: Tensor = self.layers[layer].to(x_BTC.device)(x_BTC[0].float())
        return scores_TH

    def _select_slots(self, cache: EvictedCache) -> Tensor:
        assert cache.scores is not None, "slots have scores"
        recent = self.settings.recent
        if recent is not None:
            last = in_tokens(recent, int(cache.next))
            if self.settings.threshold is None:  # the budget includes them
                budget = self.settings.kept_tokens(int(cache.next))
                last = min(last, max(0, budget - SINK_TOKENS))
            stays = (cache.index >= cache.next - last) & (cache.scores > -math.inf)
            cache = replace(cache, scores=cache.scores.masked_fill(stays, MUST_STAY_SCORE))
        if self.settings.threshold is None:
            return super()._select_slots(cache)
        assert cache.scores is not None, "slots have scores"
        return cache.scores[:, 0] >= self.settings.threshold

    def accumulate_gradients(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Update the closed form of a linear scorer with the texts of a step; others by gradient.

        The loss is that of the scorer before the update.
        """
        if self.settings.scorer != "linear":
            return super().accumulate_gradients(episodes)
        examples = list(self._examples(episodes))
        with torch.no_grad():
            loss = self._error(examples)
            for example in examples:
                self._fit(*(part.double() for part in example))
        return {"loss": loss}

    def loss_parts(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        """Return the mean squared error of log scores."""
        return {"score": self._error(self._examples(episodes))}

    def _error(self, examples: Iterable[Example]) -> Tensor:
        errors = [
            ((self._predictions(x) - y).square().mean(-1, keepdim=True) * seen).sum() / seen.sum()
            for x, y, seen in examples
        ]
        return torch.stack(errors).mean()

    def validate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the mean squared error "loss", and "r2": its mean R^2 over layers and heads."""
        with torch.no_grad():
            parts = [(self._predictions(x), y, seen) for x, y, seen in self._examples(episodes)]
        predicted, wanted, seen = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        count_L1 = seen.sum(1).clamp(min=1)
        mean_LH = (wanted * seen).sum(1) / count_L1
        error_LH = ((predicted - wanted).square() * seen).sum(1) / count_L1
        variance_LH = ((wanted - mean_LH[:, None]).square() * seen).sum(1) / count_L1
        r2_LH = 1 - error_LH / variance_LH.clamp(min=1e-12)
        return {"loss": float(error_LH.mean()), "r2": float(r2_LH.mean())}

    def training_tensors(self) -> Mapping[str, Tensor]:
        """Return the sums of the closed form."""
        if not self._sums and self.settings.scorer == "linear":
            layers, size, heads = len(self.lm.kv_layers), self.lm.hidden_size + 1, self.lm.kv_heads
            sums = torch.zeros(
                layers, size, size + heads, dtype=torch.float64, device=self.lm.device
            )
            self._sums = {"sums": sums}
        return self._sums

    def _predictions(self, x_LTC: Tensor) -> Tensor:
        pairs = zip(self.layers, x_LTC, strict=True)
        return torch.stack([scorer(x_TC) for scorer, x_TC in pairs])

    @torch.no_grad()
    def _examples(self, episodes: Sequence[Episode]) -> Iterator[Example]:
        """Yield an example for each context, without the first tokens, which are always kept."""
        for episode in episodes:
            chunks = [[chunk] for chunk in episode.chunks()]
            (row,) = new_chunk_ids(self.lm, self.begin(1), chunks)
            ids = torch.tensor([[*self.lm.start_ids, *chain(*row)]], device=self.lm.device)
            if ids.shape[1] <= SINK_TOKENS:
                fault = f"The context of training episode {episode.key} is too short."
                raise UserError(fault, "Use --task-set for longer contexts, or another --task.")
            with map_inputs(self.lm, lambda _, x_BTC: x_BTC[0]) as inputs:
                text = super().score_text(None, ids)
            x_LTC = torch.stack([torch.cat(part).to(self.lm.device) for part in inputs]).float()
            scores = self._join(None, text).scores
            assert scores is not None, "slots have scores"
            y_LTH = (scores[:, 0].clamp(min=0) + MIN_SCORE).log().mT
            seen_LT1 = (scores[:, 0, :1] > -math.inf).float().mT
            yield x_LTC[:, SINK_TOKENS:], y_LTH[:, SINK_TOKENS:], seen_LT1[:, SINK_TOKENS:]

    def _fit(self, x_LTC: Tensor, y_LTH: Tensor, seen_LT1: Tensor) -> None:
        """Add a text to the sums, and solve the ridge regression of every layer."""
        x_LTF = torch.cat([x_LTC, torch.ones_like(seen_LT1)], -1) * seen_LT1
        sums = self.training_tensors()["sums"]
        sums += x_LTF.mT @ torch.cat([x_LTF, y_LTH], -1)
        size = x_LTF.shape[-1]
        for scorer, sum_FX in zip(self.layers, sums, strict=True):
            scale_F1 = sum_FX.diagonal().clamp(min=1e-9).sqrt()[:, None]
            gram_FF = sum_FX[:, :size] / scale_F1 / scale_F1.T
            gram_FF.diagonal().add_(RIDGE_WEIGHT)
            weights_FH = torch.linalg.solve(gram_FF, sum_FX[:, size:] / scale_F1) / scale_F1
            assert isinstance(scorer, nn.Linear), "only linear scorers have a closed form"
            scorer.weight.copy_(weights_FH[:-1].T)
            scorer.bias.copy_(weights_FH[-1])
