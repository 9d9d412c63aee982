"""Methods together: all of them read, and their patches are put on the model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import JOINER, Ask, Json, Observe
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.methods.base import BaseMethod, Reads
from ttabench.methods.pair import BY_SIZE, PairSpec, joined, parted

AT_ONCE: tuple[Reads, ...] = ("pieces", "run", "once")
"""Grouping of pieces that a part wants in one call of `adapt`, from least to most."""
PARTS = "parts"
"""Where `meta` keeps that of each part, by label."""


class Pair(BaseMethod[Any]):
    """Methods that read together. State: the tensors of each part under its label, and their `meta`."""

    spec: ClassVar[PairSpec]

    def __init__(self, lm: LM, settings: Any, parts: Sequence[BaseMethod[Any]] = ()) -> None:
        super().__init__(lm, settings)
        self._parts = tuple(parts) or tuple(spec.load()(lm, own) for spec, own in parted(self.spec.parts, settings))
        self.growth = max((part.growth for part in self._parts), key=BY_SIZE.index)
        self.looks_at_question = any(part.looks_at_question for part in self._parts)
        self.one_reader = any(part.one_reader for part in self._parts)
        self.reads = max((part.reads for part in self._parts), key=AT_ONCE.index)
        self.own_tensors = tuple(f"{label}.{name}" for label, part in self._labelled() for name in part.own_tensors)
        self._break = tuple(lm.encode(JOINER, follows=True))

    def parts(self) -> tuple[BaseMethod[Any], ...]:
        """The methods, in their order."""
        return self._parts

    @property
    def auto(self) -> Mapping[str, Json]:
        """That of all parts, by the common names of their settings."""
        return joined(self.spec.labels, [part.auto for part in self._parts])

    def begin(self, rows: int) -> State:
        """Nothing read by any part."""
        return self._joined({label: part.begin(rows) for label, part in self._labelled()})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Every part reads all pieces."""
        parts = self._labelled()
        return self._joined({label: part.adapt(self.state_of(state, label), pieces) for label, part in parts})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """Prefix and deltas of all parts, then the tokens of each behind a break where text stands in front of them."""
        patches = [part.patch(self.state_of(state, label), asks) for label, part in self._labelled()]
        putting = [part.name for part, patch in zip(self._parts, patches, strict=True) if patch.prefix is not None]
        if len(putting) > 1:
            fault = f"{putting[0]} and {putting[1]} both put keys and values in front of the text: these have no order"
            hint = "Combine one of them with methods that put texts there (rag) or change weights (templora)."
            raise UserError(f"{fault}, so {self.name} cannot be merged.", hint)
        whole = Patch()
        for patch in patches:
            whole += replace(patch, tokens_BT=None, tokens_mask_BT=None)
        follows = whole.prefix is not None and whole.prefix.holds_bos
        for patch in patches:
            if patch.tokens_BT is not None:
                whole += self._behind(patch) if follows else Patch(patch.tokens_BT, patch.tokens_mask_BT)
                follows = True
        return whole

    def state_of(self, state: State, label: str) -> State:
        """The state of one part."""
        begins = f"{label}."
        own = {name.removeprefix(begins): tensor for name, tensor in state.tensors.items() if name.startswith(begins)}
        return State(state.rows, own, state.meta[PARTS][label])

    def _labelled(self) -> list[tuple[str, BaseMethod[Any]]]:
        return list(zip(self.spec.labels, self._parts, strict=True))

    def _joined(self, states: Mapping[str, State]) -> State:
        rows = next(iter(states.values())).rows
        tensors = {f"{label}.{name}": tensor for label, own in states.items() for name, tensor in own.tensors.items()}
        meta: dict[str, Json] = {PARTS: {label: dict(own.meta) for label, own in states.items()}}
        for own in states.values():
            for key, counts in own.meta.items():
                if key == "tokens_read" or key.startswith("truncated"):
                    before = meta.get(key) or counts
                    meta[key] = [max(pair) for pair in zip(counts, before, strict=True)]
        return State(rows, tensors, meta)

    def _behind(self, patch: Patch) -> Patch:
        """The tokens of a patch behind what stands between two texts; none where a row has no tokens."""
        assert patch.tokens_BT is not None
        tokens_BT, mask_BT = patch.tokens_BT, patch.tokens_mask_BT
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if mask_BT is None else mask_BT.bool()
        break_BJ = tokens_BT.new_tensor(self._break).expand(len(tokens_BT), -1)
        any_BJ = mask_BT.any(1, keepdim=True).expand(break_BJ.shape)
        return Patch(torch.cat([break_BJ, tokens_BT], 1), torch.cat([any_BJ, mask_BT], 1))
