"""StreamAdapter: the keys and values of a context, summarised chunk by chunk, become weight deltas.

Paper: Muhtar et al., "StreamAdapter: Efficient Test Time Adaptation from Contextual Streams", arXiv
2411.09289.

Shape letters: L layers · B rows · S slots · M linear maps · R queries · E state channels of a
query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.patching import check_fits, deltas_applied
from ttabench.lm.forward.tokens import new_chunk_ids, pad
from ttabench.lm.model import LM
from ttabench.lm.patch import Delta, Patch, State
from ttabench.methods.parts.kept import extend_prefix, stored_ids, window_patch
from ttabench.methods.parts.lora import dense_deltas
from ttabench.methods.streamadapter import STREAMADAPTER, StreamAdapterSettings
from ttabench.methods.streamadapter.networks import StreamAdapterNetworks
from ttabench.methods.trainable import Trainable


class StreamAdapter(Trainable[StreamAdapterSettings]):
    """StreamAdapter.

    State: `h` [L, B, M, R, E]; the unfinished chunk's keys and values, or the window's tokens.
    """

    spec = STREAMADAPTER
    unswapped_tensors = ("tokens", "lengths")
    required_capabilities = ("keys", "shape")

    def __init__(self, lm: LM, settings: StreamAdapterSettings) -> None:
        super().__init__(lm, settings)
        self.networks = StreamAdapterNetworks(lm, settings)
        self.granularity = "segment" if settings.window is None else "chunk"

    def modules(self) -> nn.ModuleDict:
        """Return the mappers, one per layer."""
        return nn.ModuleDict(dict(self.networks.named_children()))

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read the chunks of a row as one text; without a window, later ones see earlier ones."""
        rows = [list(chain(*chunk_rows)) for chunk_rows in new_chunk_ids(self.lm, state, chunks)]
        read = [
            before + len(new) for before, new in zip(state.meta["tokens_read"], rows, strict=True)
        ]
        with torch.set_grad_enabled(self._is_training):
            tensors = (
                self._absorb_texts(state, rows)
                if self.settings.window is None
                else self._slide_windows(state, rows)
            )
        return State(state.rows, tensors, {"tokens_read": read})

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # interface
        """Return deltas of every adapted linear map, with the tokens of the window."""
        if "h" not in state.tensors:
            return window_patch(state.tensors)
        with torch.set_grad_enabled(self._is_training):
            low_rank = self.networks.deltas(self.networks.flush_tail(state.tensors))
            deltas: Mapping[str, Delta] = low_rank
            if self.settings.merge and state.rows == 1:
                deltas = dense_deltas(self.lm, low_rank)
        return replace(window_patch(state.tensors), deltas=deltas)

    def _absorb_texts(self, state: State, rows: list[list[int]]) -> dict[str, Tensor]:
        """Absorb these texts as a whole into the state."""
        lm, start = self.lm, list(self.lm.start_ids)
        ids_BT, mask_BT = pad([start + row for row in rows], lm.pad_id, "right", lm.device)
        check_fits(
            lm, None, mask_BT.sum(1), "Use a sliding window: --set window=1024 (presets *-book)."
        )
        with torch.no_grad():
            text = extend_prefix(lm, None, ids_BT, mask_BT).map_layers(
                lambda layer: layer[:, :, len(start) :]
            )
        before = state.tensors or self.networks.empty_state(state.rows)
        return self.networks.absorb(
            before, text.keys_LBHPD, text.values_LBHPD, mask_BT[:, len(start) :]
        )

    def _slide_windows(self, state: State, rows_new: list[list[int]]) -> dict[str, Tensor]:
        """Append texts to the windows, and absorb tokens that leave a window."""
        assert self.settings.window is not None
        window, stride = self.settings.window, self.settings.stride
        h_LBMRE = (state.tensors or self.networks.empty_state(state.rows))["h"]
        rows = [
            [*old, *new]
            for old, new in zip(stored_ids(state.tensors, state.rows), rows_new, strict=True)
        ]
        while leaving := [row for row, ids in enumerate(rows) if len(ids) >= window - 1]:
            index_N = torch.tensor(leaving, device=h_LBMRE.device)
            advanced_LBMRE = self._absorb_evicted(
                h_LBMRE.index_select(1, index_N), [rows[row][:stride] for row in leaving]
            )
            h_LBMRE = (
                advanced_LBMRE
                if len(leaving) == len(rows)
                else h_LBMRE.index_copy(1, index_N, advanced_LBMRE)
            )
            rows = [ids[stride:] if row in leaving else ids for row, ids in enumerate(rows)]
        lengths_B = torch.tensor([len(ids) for ids in rows], device=h_LBMRE.device)
        tokens_BT, _ = pad([*rows, [0] * (window - 2)], self.lm.pad_id, "right", h_LBMRE.device)
        return {"h": h_LBMRE, "tokens": tokens_BT[:-1], "lengths": lengths_B}

    def _absorb_evicted(self, h_LBMRE: Tensor, rows: list[list[int]]) -> Tensor:
        """Read these tokens with the adapted weights, and absorb them into the state."""
        h_LBMRE, start, device = h_LBMRE.detach(), list(self.lm.start_ids), self.lm.device
        ids_BT = torch.tensor([start + row for row in rows], device=device)
        with torch.no_grad(), deltas_applied(self.lm, self.networks.deltas(h_LBMRE), len(rows)):
            text = extend_prefix(self.lm, None, ids_BT).map_layers(
                lambda layer: layer[:, :, len(start) :]
            )
        full_B = torch.full(
            (len(rows),), self.settings.stride // self.settings.chunk, device=device
        )
        return self.networks.advance(h_LBMRE, text.keys_LBHPD, text.values_LBHPD, full_B)
