"""Combinations of methods: all read the context, and their patches are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ttabench.core.errors import UserError
from ttabench.core.types import JOINER, Chunk, Json, Query
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import Granularity, Method
from ttabench.methods.pair import GROWTHS_BY_SIZE, PairSpec, join_by_label, split_settings

GRANULARITIES: tuple[Granularity, ...] = ("chunk", "segment", "full")
"""Granularities from fine to coarse; the coarsest of the parts applies."""
PARTS_KEY = "parts"
"""Key in `meta` of the parts' own `meta`, by label."""


class Pair(Method[Any]):
    """Combination of methods. State: tensors of the parts with labels as prefixes, and `meta`."""

    spec: ClassVar[PairSpec]

    def __init__(self, lm: LM, settings: Any, parts: Sequence[Method[Any]] = ()) -> None:
        super().__init__(lm, settings)
        parts = parts or [
            part.load()(lm, part.Settings(**values))
            for part, values in split_settings(self.spec.parts, vars(settings))
        ]
        self._parts = dict(zip(self.spec.labels, parts, strict=True))
        self.growth = max((part.growth for part in parts), key=GROWTHS_BY_SIZE.index)
        self.query_aware = any(part.query_aware for part in parts)
        self.supports_batching = all(part.supports_batching for part in parts)
        self.granularity = max((part.granularity for part in parts), key=GRANULARITIES.index)
        self.unswapped_tensors = tuple(
            f"{label}.{name}"
            for label, part in self._parts.items()
            for name in part.unswapped_tensors
        )
        self._break = tuple(lm.encode(JOINER, is_continuation=True))

    def parts(self) -> tuple[Method[Any], ...]:
        """Return the methods in order."""
        return tuple(self._parts.values())

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Resolved settings of all parts, with prefixed names."""
        resolved = [part.resolved_settings for part in self._parts.values()]
        return join_by_label(self.spec.labels, resolved)

    def begin(self, rows: int) -> State:
        """Return the empty states of all parts."""
        return self._join_states({label: part.begin(rows) for label, part in self._parts.items()})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Adapt every part to all chunks."""
        return self._join_states(
            {
                label: part.adapt(self.part_state(state, label), chunks)
                for label, part in self._parts.items()
            }
        )

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Merge prefix and deltas of all parts, then append their tokens, separated by a joiner.

        Raises:
            UserError: several parts have a prefix.
        """
        patches = [
            part.patch(self.part_state(state, label), queries)
            for label, part in self._parts.items()
        ]
        names = [
            part.name
            for part, patch in zip(self._parts.values(), patches, strict=True)
            if patch.prefix is not None
        ]
        if len(names) > 1:
            fault = (
                f"{self.name} cannot be merged: {names[0]} and {names[1]} both add keys and values"
            )
            hint = "Use one of them with methods that add texts (rag) or change weights (templora)."
            raise UserError(f"{fault} in front of the text.", hint)
        whole = Patch()
        for patch in patches:
            whole += replace(patch, tokens_BT=None, tokens_mask_BT=None)
        is_continuation = whole.prefix is not None and whole.prefix.holds_bos
        for patch in patches:
            if patch.tokens_BT is not None:
                if is_continuation:
                    whole += self._break_before(patch)
                whole += Patch(patch.tokens_BT, patch.tokens_mask_BT)
                is_continuation = True
        return whole

    def part_state(self, state: State, label: str) -> State:
        """Return the state of one part."""
        prefix = f"{label}."
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.tensors.items()
            if name.startswith(prefix)
        }
        return State(state.rows, tensors, state.meta[PARTS_KEY][label])

    def _join_states(self, states: Mapping[str, State]) -> State:
        rows = next(iter(states.values())).rows
        tensors = {
            f"{label}.{name}": tensor
            for label, state in states.items()
            for name, tensor in state.tensors.items()
        }
        meta: dict[str, Json] = {PARTS_KEY: {label: dict(s.meta) for label, s in states.items()}}
        for state in states.values():
            for key, counts in state.meta.items():
                if key == "tokens_read" or key.startswith("truncated"):
                    before = meta.get(key) or counts
                    meta[key] = [max(pair) for pair in zip(counts, before, strict=True)]
        return State(rows, tensors, meta)

    def _break_before(self, patch: Patch) -> Patch:
        """Return a joiner as tokens before those of a patch. Rows without tokens stay empty."""
        tokens_BT, mask_BT = patch.tokens_BT, patch.tokens_mask_BT
        assert tokens_BT is not None
        break_BJ = tokens_BT.new_tensor(self._break).expand(len(tokens_BT), -1)
        if mask_BT is None:
            return Patch(break_BJ)
        return Patch(break_BJ, mask_BT.bool().any(1, keepdim=True).expand(break_BJ.shape))
