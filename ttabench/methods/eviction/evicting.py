"""What methods that throw keys and values away have in common: read a text on top of what is left, then evict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.rotary import Rotary
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.forward.ways import rotary_of, ways_of
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod
from ttabench.methods.eviction.evicted_cache import EvictedCache, extended
from ttabench.methods.eviction.scores import ColumnSums
from ttabench.methods.eviction.settings import ReadingSettings

SettingsT = TypeVar("SettingsT", bound=ReadingSettings)


class EvictingMethod(BaseMethod[SettingsT]):
    """State: the kept keys and values, their places in the text, and how many tokens were read."""

    needs: tuple[str, ...] = ("hooks", "gaps", "shape")
    Cache: ClassVar[type[Any]] = EvictedCache
    """What a state holds: `EvictedCache` or `RaggedCache`."""
    asked = 0
    """Tokens of prompt and answer that must fit beside a context for it to be called whole."""
    rotary: Rotary | None
    chunk: int | None
    """Tokens after which it evicts at the latest."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        moving = settings.positions == "cache" or (settings.positions == "auto" and ways_of(lm).rotary is not None)
        self.rotary = rotary_of(lm) if moving else None
        self.chunk = settings.chunk
        self.growth = "linear" if settings.kept(2**20) > settings.kept(2**19) else "constant"
        self.reads = "run" if settings.join else "pieces"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Observe]]) -> State:
        """Read pieces as one text, or one by one, see `ReadingSettings.join`."""
        kept = self.Cache.of(state)
        pieces = new_ids(self.lm, state, chunks)
        joined = [[list(chain(*row)) for row in pieces]]
        for rows in joined if self.settings.join else map(list, zip(*pieces, strict=True)):
            for part in self._parts(rows, [] if kept is not None else list(self.lm.start_ids)):
                ids_BT, mask_BT = pad(part, self.lm.pad_id, "left")
                kept = self._read(kept, ids_BT.to(self.lm.device), mask_BT.to(self.lm.device))
        new = [sum(map(len, row)) for row in pieces]
        read = [before + more for before, more in zip(state.meta["tokens_read"], new, strict=True)]
        return State(state.rows, {} if kept is None else kept.tensors(), {"tokens_read": read})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The kept cache as a prefix."""
        kept = self.Cache.of(state)
        return Patch(prefix=None if kept is None else kept.prefix(self.rotary))

    def evicts_nothing(self, tokens: int) -> bool:
        """Whether as many tokens stay as there are; BOS, or what opens a chat, is kept like text."""
        whole = tokens + len(self.lm.start_ids)
        return self.settings.kept(whole) >= whole + self.asked

    def _parts(self, rows: Sequence[list[int]], start: list[int]) -> Iterator[list[list[int]]]:
        """Rows cut into parts of at most `chunk` tokens, the parts of a row of like length."""
        texts = [start + row for row in rows]
        size = self.chunk or max(1, *map(len, texts))
        counts = [-(-len(text) // size) for text in texts]
        for number in range(max(counts)):
            yield [
                text[len(text) * number // count : len(text) * (number + 1) // count] if number < count else []
                for text, count in zip(texts, counts, strict=True)
            ]

    @abstractmethod
    def _read(self, kept: Any, ids_BT: Tensor, mask_BT: Tensor) -> Any:
        """The cache that stays after reading these tokens (padded in front) on top of the one before."""


def observed(
    lm: LM, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor, counted_BT: Tensor, rotary: Rotary | None
) -> EvictedCache:
    """Everything kept and read, its scores the attention [L, B, N, S] each slot got from the tokens that count."""
    sums = ColumnSums(lm.layers, 0 if kept is None else kept.index.shape[-1], counted_BT)
    whole = extended(lm, kept, ids_BT, mask_BT, rotary, sums)
    return replace(whole, scores=sums.total())
