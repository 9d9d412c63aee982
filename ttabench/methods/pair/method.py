"""Methods together: all of them read, and their patches are put on the model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import JOINER, Chunk, Json, Query
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod, Granularity
from ttabench.methods.pair import GROWTHS_BY_SIZE, PairSpec, join_by_label, split_settings

GRANULARITIES: tuple[Granularity, ...] = ("chunk", "segment", "full")
"""Grouping of pieces that a part wants in one call of `adapt`, from least to most."""
PARTS_KEY = "parts"
"""Where `meta` keeps that of each part, by label."""


class Pair(BaseMethod[Any]):
    """Methods that read together. State: the tensors of each part under its label, and their `meta`."""

    spec: ClassVar[PairSpec]

    def __init__(self, lm: LM, settings: Any, parts: Sequence[BaseMethod[Any]] = ()) -> None:
        super().__init__(lm, settings)
        self._parts = tuple(parts) or tuple(
            spec.load()(lm, own) for spec, own in split_settings(self.spec.parts, settings)
        )
        self.growth = max((part.growth for part in self._parts), key=GROWTHS_BY_SIZE.index)
        self.query_aware = any(part.query_aware for part in self._parts)
        self.supports_batching = all(part.supports_batching for part in self._parts)
        self.granularity = max((part.granularity for part in self._parts), key=GRANULARITIES.index)
        self.unswapped_tensors = tuple(
            f"{label}.{name}"
            for label, part in self._labelled_parts()
            for name in part.unswapped_tensors
        )
        self._break = tuple(lm.encode(JOINER, is_continuation=True))

    def parts(self) -> tuple[BaseMethod[Any], ...]:
        """The methods, in their order."""
        return self._parts

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """That of all parts, by the common names of their settings."""
        return join_by_label(self.spec.labels, [part.resolved_settings for part in self._parts])

    def begin(self, rows: int) -> State:
        """Nothing read by any part."""
        return self._join_states(
            {label: part.begin(rows) for label, part in self._labelled_parts()}
        )

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Every part reads all pieces."""
        parts = self._labelled_parts()
        return self._join_states(
            {label: part.adapt(self.part_state(state, label), chunks) for label, part in parts}
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Prefix and deltas of all parts, then the tokens of each behind a break where text stands in front of them."""
        patches = [
            part.patch(self.part_state(state, label), queries)
            for label, part in self._labelled_parts()
        ]
        putting = [
            part.name
            for part, patch in zip(self._parts, patches, strict=True)
            if patch.prefix is not None
        ]
        if len(putting) > 1:
            fault = f"{putting[0]} and {putting[1]} both put keys and values in front of the text: these have no order"
            hint = "Combine one of them with methods that put texts there (rag) or change weights (templora)."
            raise UserError(f"{fault}, so {self.name} cannot be merged.", hint)
        whole = Patch()
        for patch in patches:
            whole += replace(patch, tokens_BT=None, tokens_mask_BT=None)
        is_continuation = whole.prefix is not None and whole.prefix.holds_bos
        for patch in patches:
            if patch.tokens_BT is not None:
                whole += (
                    self._after_break(patch)
                    if is_continuation
                    else Patch(patch.tokens_BT, patch.tokens_mask_BT)
                )
                is_continuation = True
        return whole

    def part_state(self, state: State, label: str) -> State:
        """The state of one part."""
        begins = f"{label}."
        own = {
            name.removeprefix(begins): tensor
            for name, tensor in state.tensors.items()
            if name.startswith(begins)
        }
        return State(state.rows, own, state.meta[PARTS_KEY][label])

    def _labelled_parts(self) -> list[tuple[str, BaseMethod[Any]]]:
        return list(zip(self.spec.labels, self._parts, strict=True))

    def _join_states(self, states: Mapping[str, State]) -> State:
        rows = next(iter(states.values())).rows
        tensors = {
            f"{label}.{name}": tensor
            for label, own in states.items()
            for name, tensor in own.tensors.items()
        }
        meta: dict[str, Json] = {
            PARTS_KEY: {label: dict(own.meta) for label, own in states.items()}
        }
        for own in states.values():
            for key, counts in own.meta.items():
                if key == "tokens_read" or key.startswith("truncated"):
                    before = meta.get(key) or counts
                    meta[key] = [max(pair) for pair in zip(counts, before, strict=True)]
        return State(rows, tensors, meta)

    def _after_break(self, patch: Patch) -> Patch:
        """The tokens of a patch behind what stands between two texts; none where a row has no tokens."""
        assert patch.tokens_BT is not None
        tokens_BT, mask_BT = patch.tokens_BT, patch.tokens_mask_BT
        mask_BT = (
            torch.ones_like(tokens_BT, dtype=torch.bool) if mask_BT is None else mask_BT.bool()
        )
        break_BJ = tokens_BT.new_tensor(self._break).expand(len(tokens_BT), -1)
        any_BJ = mask_BT.any(1, keepdim=True).expand(break_BJ.shape)
        return Patch(torch.cat([break_BJ, tokens_BT], 1), torch.cat([any_BJ, mask_BT], 1))
