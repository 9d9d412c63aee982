"""Base class for evicting methods: reads a text in parts, and evicts slots after each.

Shape letters: B rows · T tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

from ttabench.core.types import Chunk, Json, Query
from ttabench.lm.attention import AttentionObserver, observe_attention
from ttabench.lm.forward.capabilities import Rotary, get_capabilities, get_rotary
from ttabench.lm.forward.patching import check_fits
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, Prefix, State
from ttabench.methods.base import Granularity, Method
from ttabench.methods.eviction.cache import EvictedCache, append_text
from ttabench.methods.eviction.spec import EvictionSettings, split_evenly
from ttabench.methods.parts.kept import extend_prefix

SettingsT = TypeVar("SettingsT", bound=EvictionSettings)
READ_LESS_HINT = "Use --task-set documents=N to read less, or a --model with more positions."
MOVE_UP_HINT = "Use --set positions=cache --set chunk=256, and a budget in tokens."


def prefix_with_room(
    lm: LM, kept: EvictedCache | None, mask_BT: Tensor, rotary: Rotary | None
) -> Prefix | None:
    """Return the kept cache as a prefix.

    Raises:
        UserError: the model has too few positions for the text after it.
    """
    start = None if kept is None else kept.prefix(rotary)
    hint = MOVE_UP_HINT if get_capabilities(lm).rotary else READ_LESS_HINT
    check_fits(lm, start, mask_BT.sum(1), hint)
    return start


@torch.no_grad()
def extend_cache(
    lm: LM,
    kept: EvictedCache | None,
    ids_BT: Tensor,
    mask_BT: Tensor,
    rotary: Rotary | None,
    watcher: AttentionObserver | None = None,
) -> EvictedCache:
    """Read a text after the kept cache, without an eviction. Scores are dropped.

    Args:
        kept: cache of the text so far. If None, the text starts with BOS, if the model has one.
        mask_BT: bool, False for padding, which is in front.
        rotary: if given, keys are stored without rotation.
    """
    start = prefix_with_room(lm, kept, mask_BT, rotary)
    with observe_attention(watcher):
        whole = [extend_prefix(lm, start, ids_BT, mask_BT)]
    return append_text(kept, whole.pop(), mask_BT, rotary)


class EvictingMethod(Method[SettingsT]):
    """Base class for evicting methods. State: kept keys and values, positions, tokens read."""

    required_capabilities: tuple[str, ...] = ("hooks", "gaps", "shape")
    granularity: Granularity = "segment"
    cache_class: type[Any] = EvictedCache
    """Class of the state's tensors: `EvictedCache` or `RaggedCache`."""
    reserved_tokens = 0
    """Tokens of the budget for prompt and answer, if a method evicts while decoding."""
    rotary: Rotary | None
    chunk: int | None
    """Maximum tokens between evictions."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        moves_keys = settings.positions == "cache" or (
            settings.positions == "auto" and get_capabilities(lm).rotary is not None
        )
        self.rotary = get_rotary(lm) if moves_keys else None
        self.chunk = settings.chunk
        # a budget that is a share of the context grows with it; a budget in tokens does not
        self.growth = (
            "linear" if settings.kept_tokens(2**20) > settings.kept_tokens(2**19) else "constant"
        )

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Value that `positions="auto"` was resolved to."""
        if self.settings.positions != "auto":
            return {}
        return {"positions": "cache" if self.rotary else "original"}

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read the chunks of each row as one text, in parts of at most `chunk` tokens."""
        kept = self.cache_class.of(state)
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        texts = [row if kept is not None else [*self.lm.start_ids, *row] for row in rows]
        parts_by_row = [
            [text[part.start : part.stop] for part in split_evenly(len(text), self.chunk)]
            for text in texts
        ]
        for part in zip_longest(*parts_by_row, fillvalue=[]):
            kept = self._read(kept, *pad(part, self.lm.pad_id, "left", self.lm.device))
        tokens_read = [
            before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        return State(
            state.rows, {} if kept is None else kept.state_tensors(), {"tokens_read": tokens_read}
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # base class
        """Return the kept cache as a prefix."""
        kept = self.cache_class.of(state)
        return Patch(prefix=None if kept is None else kept.prefix(self.rotary))

    def evicts_nothing(self, tokens: int) -> bool:
        """Return True if the budget covers the context, including BOS or the opening of a chat."""
        whole = tokens + len(self.lm.start_ids)
        return self.settings.kept_tokens(whole) >= whole + self.reserved_tokens

    @abstractmethod
    def _read(self, kept: Any, ids_BT: Tensor, mask_BT: Tensor) -> Any:
        """Read tokens (padding in front) after the kept cache, evict, and return the new cache."""
