"""Base class for methods that keep the slots with the highest scores, in every layer and head.

    class SmallKeys(ScoringMethod[BudgetSettings]):
        spec = eviction_spec("small_keys", "slots with the smallest keys")

        def score(self, keys: Tensor) -> Tensor:
            return -keys.norm(dim=-1)

Shape letters: L layers · B rows · N query heads · H key/value heads · S slots · T tokens ·
    D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from ttabench.core.errors import UnknownName, UserError
from ttabench.lm.attention import AttentionCall
from ttabench.lm.forward.capabilities import require_capabilities
from ttabench.lm.model import LM
from ttabench.methods.eviction.cache import (
    EvictedCache,
    RaggedCache,
    amounts_by_row,
    drop_invisible,
    newest_slots,
    pack_slots,
)
from ttabench.methods.eviction.evicting import EvictingMethod, SettingsT, extend_cache
from ttabench.methods.eviction.observers import ColumnSums, QueryStore
from ttabench.methods.eviction.shares import head_budgets, load_shares, select_slots
from ttabench.methods.eviction.spec import UNIFORM

OBSERVERS = {"attention": ColumnSums, "queries": QueryStore}
"""Observers of a text by the parameter of `score` that needs them."""
PARAMETERS = [*OBSERVERS, *"keys values positions earlier_scores read next_position".split()]
"""Names that the parameters of `score` may have."""


class ScoringMethod(EvictingMethod[SettingsT]):
    """Base class for methods with a function `score`."""

    score: Callable[..., Tensor]
    """Return scores [L, H, S] of all slots of one row, without padding. The highest are kept.

    Its parameters are any of these. What it does not name is not computed.

    - keys [L, H, S, D]: keys as attention sees them, with rotary embeddings.
    - values [L, H, S, D].
    - positions [L or 1, H or 1, S]: positions in the text.
    - attention [L, N, S]: sum of the attention that the slots receive from the observed tokens.
    - queries [L, N, T, D]: attention queries of the observed tokens. They are rotated and scaled,
      so attention is the softmax of queries @ keys.mT.
    - earlier_scores [L, H, S]: scores at the previous eviction, 0 for new slots. Each slot of the
      state then stores its score.
    - read: number of tokens read, including BOS and evicted tokens.
    - next_position: position of the next token. The positions of `queries` end before it.
    """

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        self._inputs = tuple(signature(self.score).parameters)
        for name in self._inputs:
            if name not in PARAMETERS:
                raise UnknownName(f"parameter of {self.name}.score", name, PARAMETERS)
        if {"keys", "values", "queries"} & {*self._inputs}:
            require_capabilities(lm, "plain_keys")
        shares = getattr(settings, "shares", UNIFORM)
        self._has_head_budgets = shares != UNIFORM
        if not self._has_head_budgets:
            return
        if self.chunk is not None or self.rotary is not None:
            fault = f"shares={shares} of {self.name} needs the whole context at its own positions."
            raise UserError(fault, "Use --set positions=original, and remove chunk and --preset.")
        self._shares_LH = load_shares(lm, shares)
        self.cache_class, self.granularity, self.supports_batching = RaggedCache, "full", False

    def always_kept(self, read: int) -> tuple[int, int]:  # noqa: ARG002  # base class
        """Return how many first and last slots are kept whatever their scores."""
        return 0, 0

    def observed_tokens(self, read: int) -> int:
        """Return how many last tokens are observed; by default all since the last eviction."""
        return read

    def _read(
        self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor
    ) -> EvictedCache | RaggedCache:
        if self._has_head_budgets and kept is not None:
            fault = f"{self.name} with head budgets (shares) cannot read on after an eviction."
            raise UserError(fault, "Use one command for all texts, or --set shares=uniform.")
        kept_slots = 0 if kept is None else kept.index.shape[-1]
        read_B = mask_BT.sum(1) + (0 if kept is None else kept.next)
        (observed_B,) = amounts_by_row(lambda read: [self.observed_tokens(read)], read_B)
        counted_BT = newest_slots(mask_BT, observed_B)
        observers = {
            name: observer(len(self.lm.kv_layers), kept_slots, counted_BT)
            for name, observer in OBSERVERS.items()
            if name in self._inputs
        }

        def watch(call: AttentionCall) -> None:
            for observer in observers.values():
                observer(call)

        whole = extend_cache(
            self.lm, kept, ids_BT, mask_BT, self.rotary, watch if observers else None
        )
        scores = whole.keys.new_zeros(whole.keys.shape[:-1], dtype=torch.float32)
        stores_scores = "earlier_scores" in self._inputs
        if stores_scores and kept is not None and kept.scores is not None:
            scores[..., :kept_slots] = kept.scores
        tensors = {"earlier_scores": scores, **{n: o.total() for n, o in observers.items()}}
        whole = replace(whole, scores=self._score_rows(whole, tensors, counted_BT)).compact()
        if self._has_head_budgets:
            return self._evict_by_head(whole)
        assert whole.scores is not None, "slots have scores"
        budget_B, first_B, last_B = amounts_by_row(
            lambda read: (self.settings.kept_tokens(read), *self.always_kept(read)), whole.next
        )
        state = whole if stores_scores else replace(whole, scores=None)
        return state.evict(whole.scores, budget_B, first_B=first_B, last_B=last_B)

    def _evict_by_head(self, whole: EvictedCache) -> RaggedCache:
        """Keep the best slots of each head, as many as its share of the budget.

        First and last slots that are always kept take the same part of every head's budget, up to
        their usual number.
        """
        read = int(whole.next)
        scores = drop_invisible(self.lm, whole).scores
        assert scores is not None, "slots have scores"
        scores_LHS, slots = scores[:, 0], scores.shape[-1]
        budget = self.settings.kept_tokens(read)
        total = budget * scores_LHS[..., 0].numel()
        counts_LH = head_budgets(self._shares_LH, scores_LHS, total)
        part_LH1 = scores_LHS.new_ones(1, 1, 1)
        if counts_LH is not None:
            part_LH1 = (counts_LH / min(budget, slots))[..., None].clamp(max=1)
        first, last = self.always_kept(read)
        place_S = torch.arange(slots, device=scores.device)
        stays = (place_S < (first * part_LH1).ceil()) | (
            slots - place_S <= (last * part_LH1).ceil()
        )
        scores_LHS = scores_LHS.masked_fill(stays & (scores_LHS > -math.inf), math.inf)
        kept = select_slots(scores_LHS, total, counts_LH)
        return pack_slots(replace(whole, scores=None), kept)

    def _score_rows(
        self, whole: EvictedCache, tensors: Mapping[str, Tensor], counted_BT: Tensor
    ) -> Tensor:
        """Return the scores of all slots, float32 [L, B, H, S], 0 for padding.

        Args:
            tensors: earlier scores and results of observers.
            counted_BT: bool, True for observed tokens.
        """
        keys, valid_BS = whole.keys, whole.valid
        if self.rotary is not None and "keys" in self._inputs:
            keys = self.rotary.rotate(keys, whole.slots(), inverse=False)
        by_slot = {"keys": keys, "values": whole.values, "positions": whole.index.long(), **tensors}
        valid = {"queries": counted_BT[:, counted_BT.any(0)]}
        scores = torch.zeros_like(tensors["earlier_scores"])
        for row, read in enumerate(whole.next.tolist()):
            slots = int(valid_BS[row].sum())
            if slots <= self.settings.kept_tokens(read) and "earlier_scores" not in self._inputs:
                continue  # nothing is evicted
            inputs: dict[str, Any] = {
                name: _drop_padding(tensor[:, row], valid.get(name, valid_BS)[row])
                for name, tensor in by_slot.items()
                if name in self._inputs
            }
            inputs |= {"read": read, "next_position": read if self.rotary is None else slots}
            row_scores = self.score(**{name: inputs[name] for name in self._inputs})
            expected = (*scores.shape[::2], slots)
            if row_scores.shape != expected:
                raise UserError(
                    f"{self.name}.score returned a tensor of shape {tuple(row_scores.shape)}.",
                    f"Return the shape {expected}: layers, key/value heads, slots.",
                )
            scores[:, row].masked_scatter_(valid_BS[row], row_scores.float())
        return scores


def _drop_padding(tensor_LHS: Tensor, valid_S: Tensor) -> Tensor:
    """Return the valid slots or tokens (third dimension)."""
    return tensor_LHS if bool(valid_S.all()) else tensor_LHS[:, :, valid_S]
