"""In-Place TTT: every chunk updates the down projection of some feed-forward networks.

From the activation of a token, the map learns to predict the tokens around it. The update is a sum
of outer products, without a gradient.

Feng et al., "In-Place Test-Time Training", arXiv 2604.06169, equation 1 and algorithm 1: W <- W +
rate V^T Z, where Z is the input of the map and V = Conv1D(X) W_target. Conv1D and W_target are
trained.

Shape letters: N updated maps · B rows · T tokens of a chunk · I/O features in and out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import InputLocation, observe_inputs, prefill
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.methods.in_place_ttt import IN_PLACE_TTT, InPlaceSettings
from ttabench.methods.parts.kept import (
    prefix_from_tensors,
    prefix_tensors,
    stack_layers,
    unstack_layers,
)
from ttabench.methods.parts.lora import group_by_layer
from ttabench.methods.trainable import Trainable


class InPlaceTraining(Trainable[InPlaceSettings]):
    """In-Place TTT.

    State: `changes` of the maps, N of [B, O, I], float32; and the KV cache, if it is kept.
    """

    spec = IN_PLACE_TTT
    granularity = "segment"

    def __init__(self, lm: LM, settings: InPlaceSettings) -> None:
        self.required_capabilities = ("cache",) if settings.cache else ()
        super().__init__(lm, settings)
        self.growth = "linear" if settings.cache else "constant"
        self.names = [
            layer_names[-1]
            for layer_names in group_by_layer(lm, lm.linear_names())[:: settings.every]
        ]
        self.sources: list[InputLocation] = [
            0 if settings.made_of == "embedding" else name.rpartition(".")[0] for name in self.names
        ]
        widths = [lm.linear_shape(name)[1] for name in self.names]
        self.convolutions = nn.ParameterList(
            _next_token_kernel(width, settings.kernel).to(lm.device) for width in widths
        )
        self.maps = nn.ParameterList(torch.eye(width, device=lm.device) for width in widths)

    def modules(self) -> nn.ModuleDict:
        """Return convolutions [O, 1, kernel] and maps [O, O], one of each per updated map."""
        return nn.ModuleDict({"convolutions": self.convolutions, "maps": self.maps})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read chunk by chunk; each updates the maps and extends the cache before the next."""
        s = self.settings
        rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        prefix = prefix_from_tensors(state.tensors)
        changes = unstack_layers(state.tensors, "changes")
        with torch.set_grad_enabled(self._is_training):
            for begin in range(0, max(map(len, rows)), s.chunk):
                chunk_BT = pad(
                    [row[begin : begin + s.chunk] for row in rows], self.lm.pad_id, "right"
                )
                prefix, changes = self._read_chunk(prefix, changes, *chunk_BT)
            tensors = {} if prefix is None else prefix_tensors(prefix)
            tensors |= stack_layers("changes", changes) if changes else {}
        counts = [
            before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return the changes as deltas, and the cache."""
        return Patch(
            prefix=prefix_from_tensors(state.tensors),
            deltas=self._deltas(unstack_layers(state.tensors, "changes")),
        )

    def _deltas(self, changes: Sequence[Tensor]) -> dict[str, LowRank]:
        """Return changes as full-rank factors, since only factors may differ between rows."""
        return {
            name: LowRank(change, torch.eye(change.shape[1], device=change.device)[None])
            for name, change in zip(self.names, changes, strict=False)
        }

    def _read_chunk(
        self, prefix: Prefix | None, changes: Sequence[Tensor], ids_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Prefix | None, tuple[Tensor, ...]]:
        """Return the cache (None if it is not kept) and the changes after this chunk."""
        parts_by_location = defaultdict[InputLocation, list[Tensor]](list)
        rows, tokens = ids_BT.shape
        locations = [*dict.fromkeys([*self.sources, *self.names])]
        with observe_inputs(
            self.lm,
            lambda location, inputs: parts_by_location[location].append(inputs),
            locations,
            rows,
        ):
            extended_prefix = prefill(
                self.lm, Patch(prefix=prefix, deltas=self._deltas(changes)), ids_BT, mask_BT
            )
        real_BT1 = mask_BT.to(self.lm.device)[..., None]
        inputs = {
            location: torch.cat(parts, 1)[:, -tokens:].to(self.lm.device).float() * real_BT1
            for location, parts in parts_by_location.items()
        }
        pairs = zip(self.sources, self.names, strict=True)
        new_changes = [
            self._chunk_change(index, inputs[source], inputs[name])
            for index, (source, name) in enumerate(pairs)
        ]
        if changes:
            new_changes = [*map(torch.add, changes, new_changes)]
        return (extended_prefix if self.settings.cache else None), tuple(new_changes)

    def _chunk_change(self, index: int, source_BTO: Tensor, input_BTI: Tensor) -> Tensor:
        """Return the change of a map by a chunk [B, O, I]; padded inputs must be zero."""
        s, kernel_O1K = self.settings, self.convolutions[index]
        mixed = nn.functional.conv1d(
            source_BTO.mT, kernel_O1K, padding=s.kernel // 2, groups=len(kernel_O1K)
        ).mT
        change_BOI = s.rate * torch.einsum("bto,bti->boi", mixed @ self.maps[index].T, input_BTI)
        if s.clip is None:
            return change_BOI
        return (
            change_BOI
            * (s.clip / change_BOI.flatten(1).norm(dim=1).clamp(min=s.clip))[:, None, None]
        )


def _next_token_kernel(width: int, kernel: int) -> Tensor:
    """Return a kernel [O, 1, K] that selects the next token, and zero after the last one."""
    kernel_O1K = torch.zeros(width, 1, kernel)
    kernel_O1K[:, :, min(kernel // 2 + 1, kernel - 1)] = 1.0
    return kernel_O1K
