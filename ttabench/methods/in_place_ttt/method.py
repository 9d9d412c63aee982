"""In-Place TTT: the last map of some feed-forwards is changed by every chunk that is read, so that what a token sends
into it comes to give what stands around the token; a sum of outer products, without a gradient.

Feng et al., "In-Place Test-Time Training", arXiv 2604.06169, equation 1 and algorithm 1:
W <- W + rate V^T Z, where Z is what enters the map and V = Conv1D(X) W_target. Conv1D and W_target are trained.
Shape letters: N changed maps · B rows · T tokens of a chunk · I/O features in and out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ttabench.core.types import Ask, Observe
from ttabench.lm.forward.patching import Place, observe_inputs, read
from ttabench.lm.forward.tokens import new_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import LowRank, Patch, Prefix, State
from ttabench.methods.in_place_ttt import IN_PLACE_TTT, InPlaceSettings
from ttabench.methods.parts.kept import cached, layers, prefix_of, together
from ttabench.methods.parts.lora import by_layer
from ttabench.methods.trainable import Trainable


class InPlaceTraining(Trainable[InPlaceSettings]):
    """State: `changes` of the maps, N of [B, O, I], float32; and the cache (keys, values) where it is kept."""

    spec = IN_PLACE_TTT
    reads = "run"

    def __init__(self, lm: LM, settings: InPlaceSettings) -> None:
        self.needs = ("cache",) if settings.cache else ()
        super().__init__(lm, settings)
        self.growth = "linear" if settings.cache else "constant"
        self.names = [own[-1] for own in by_layer(lm, lm.linear_names())[:: settings.every]]
        above = [name.rpartition(".")[0] for name in self.names]
        self.sources: list[Place] = [0] * len(above) if settings.made_of == "embedding" else [*above]
        widths = [lm.linear_shape(name)[1] for name in self.names]
        self.convolutions = nn.ParameterList(_next_token(width, settings.kernel).to(lm.device) for width in widths)
        self.maps = nn.ParameterList(torch.eye(width, device=lm.device) for width in widths)

    def modules(self) -> nn.ModuleDict:
        """convolutions [O, 1, kernel] and maps [O, O], one of each a changed map."""
        return nn.ModuleDict({"convolutions": self.convolutions, "maps": self.maps})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read chunk by chunk: each is read, changes the maps, and stays in the cache, before the next is read."""
        s, rows = self.settings, [list(chain(*row)) for row in new_ids(self.lm, state, pieces)]
        held, changes = prefix_of(state.tensors), layers(state.tensors, "changes")
        with torch.set_grad_enabled(self._learning):
            for begin in range(0, max(map(len, rows)), s.chunk):
                chunk_BT = pad([row[begin : begin + s.chunk] for row in rows], self.lm.pad_id, "right")
                held, changes = self._read(held, changes, *chunk_BT)
            tensors = {} if held is None else cached(held)
            tensors |= together("changes", changes) if changes else {}
        counts = [before + len(row) for before, row in zip(state.meta["tokens_read"], rows, strict=True)]
        return State(state.rows, tensors, {"tokens_read": counts})

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:  # noqa: ARG002  # the contract's arguments
        """The changes as deltas, and the cache."""
        return Patch(prefix=prefix_of(state.tensors), deltas=self._deltas(layers(state.tensors, "changes")))

    def _deltas(self, changes: Sequence[Tensor]) -> dict[str, LowRank]:
        """Each change as factors of full rank, which rows of a batch may have of their own."""
        ones = [torch.eye(change.shape[1], device=change.device)[None] for change in changes]
        return {name: LowRank(*both) for name, both in zip(self.names, zip(changes, ones, strict=True), strict=False)}

    def _read(
        self, held: Prefix | None, changes: Sequence[Tensor], ids_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Prefix | None, tuple[Tensor, ...]]:
        """What stays of the cache once this chunk is read, and the changes once it has made its own."""
        seen, (rows, tokens) = defaultdict[Place, list[Tensor]](list), ids_BT.shape
        places = [*dict.fromkeys([*self.sources, *self.names])]
        with observe_inputs(self.lm, lambda place, entered: seen[place].append(entered), places, rows):
            whole = read(self.lm, Patch(prefix=held, deltas=self._deltas(changes)), ids_BT, mask_BT)
        real_BT1 = mask_BT.to(self.lm.device)[..., None]
        here = {place: torch.cat(parts, 1)[:, -tokens:].to(self.lm.device) for place, parts in seen.items()}
        entered = {place: hidden.float() * real_BT1 for place, hidden in here.items()}
        pairs = zip(self.sources, self.names, strict=True)
        new = [self._change(number, entered[source], entered[name]) for number, (source, name) in enumerate(pairs)]
        after = tuple(before + more for before, more in zip(changes, new, strict=True)) if changes else tuple(new)
        return (whole if self.settings.cache else None), after

    def _change(self, number: int, source_BTO: Tensor, entered_BTI: Tensor) -> Tensor:
        """What a chunk changes in a map [B, O, I]; what enters is zero where a row is padded."""
        s, kernel_O1K = self.settings, self.convolutions[number]
        mixed = nn.functional.conv1d(source_BTO.mT, kernel_O1K, padding=s.kernel // 2, groups=len(kernel_O1K)).mT
        change_BOI = s.rate * torch.einsum("bto,bti->boi", mixed @ self.maps[number].T, entered_BTI)
        if s.clip is None:
            return change_BOI
        return change_BOI * (s.clip / change_BOI.flatten(1).norm(dim=1).clamp(min=s.clip))[:, None, None]


def _next_token(width: int, kernel: int) -> Tensor:
    """A convolution [O, 1, K] that gives what the next token has; zero behind the last of a chunk."""
    kernel_O1K = torch.zeros(width, 1, kernel)
    kernel_O1K[:, :, min(kernel // 2 + 1, kernel - 1)] = 1.0
    return kernel_O1K
