"""Where the keys and values of one layer are held while a batch is being read: a cache layer of transformers.

layer = CacheLayer(None, shared=0, room=16, retain=True)
keys_BHSD, values_BHSD = layer.update(keys_BHTD, values_BHTD)        sixteen tokens fill one buffer in place
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class CacheLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer: each row's own prefix, then what is read. A shared prefix is counted, not held.

    Without `retain`, what attention needs is handed out and forgotten: one layer's copy lives at a time.
    With `room` and no gradients, one buffer is filled in place: a decoding step copies one slot, not the window.
    """

    def __init__(self, prefix: tuple[Tensor, Tensor] | None, *, shared: int, room: int, retain: bool) -> None:
        super().__init__()
        self.shared, self.room, self.retain = shared, room, retain
        self.buffers: tuple[Tensor, Tensor] | None = None
        if prefix is not None:
            self.keys, self.values = prefix

    def get_seq_length(self) -> int:
        """Slots in front of the next token."""
        return self.shared + self.own_length()

    def own_length(self) -> int:
        """Slots of the rows' own, a shared prefix not counted."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, P + T, D] for these T tokens to attend to."""
        if self.room and not torch.is_grad_enabled():
            both = self._write(key_states, value_states)
        else:
            both = joined(self.keys, key_states), joined(self.values, value_states)
        if self.retain:
            self.keys, self.values = both
        return both

    def _write(self, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        # The buffer is [B, H, P + room, D]; new slots go behind the old ones, and what is handed out is a view of it.
        start = self.own_length()
        end = start + keys_BHTD.shape[2]
        if self.buffers is None:
            self.buffers = self._buffer(self.keys, keys_BHTD), self._buffer(self.values, values_BHTD)
        for buffer_BHSD, new_BHTD in zip(self.buffers, (keys_BHTD, values_BHTD), strict=True):
            buffer_BHSD.narrow(2, start, end - start).copy_(new_BHTD)
        keys_BHSD, values_BHSD = self.buffers
        return keys_BHSD.narrow(2, 0, end), values_BHSD.narrow(2, 0, end)

    def _buffer(self, old_BHPD: Tensor | None, new_BHTD: Tensor) -> Tensor:
        rows, heads, _, size = new_BHTD.shape
        held = self.own_length()
        buffer_BHSD = new_BHTD.new_empty(rows, heads, held + self.room, size)
        if old_BHPD is not None:
            buffer_BHSD[:, :, :held] = old_BHPD
        return buffer_BHSD

    def select(self, rows: Tensor) -> None:
        """Keep these batch rows, in this order."""
        rows = rows if self.keys is None else rows.to(self.keys.device)
        length = self.own_length()
        if self.buffers is not None:
            self.buffers = self.buffers[0].index_select(0, rows), self.buffers[1].index_select(0, rows)
            self.keys, self.values = self.buffers[0][:, :, :length], self.buffers[1][:, :, :length]
        elif length:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)


def joined(old_BHPD: Tensor | None, new_BHTD: Tensor) -> Tensor:
    """New slots behind old ones; one old row serves any number of new rows."""
    if old_BHPD is None:
        return new_BHTD
    return torch.cat([old_BHPD.expand(new_BHTD.shape[0], -1, -1, -1), new_BHTD], dim=2)
