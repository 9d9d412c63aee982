"""Keep a random choice of keys and values: the control for methods that choose at equal bytes.

Shape letters: L layers · B rows · H key/value heads · S slots.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ttabench.methods import eviction
from ttabench.methods.eviction.evicting import EvictedCache, EvictingMethod, by_row, extended, kept_slots
from ttabench.methods.eviction.settings import RandomSlotsSettings


class RandomSlots(EvictingMethod[RandomSlotsSettings]):
    """The cache of the context, of which a random choice stays."""

    spec = eviction.RANDOM_SLOTS

    def _read(self, kept: EvictedCache | None, ids_BT: Tensor, mask_BT: Tensor) -> EvictedCache:
        whole = extended(self.lm, kept, ids_BT, mask_BT, self.rotary)
        places_LBHS = whole.index.long()
        scores = drawn(places_LBHS, self.lm.layers, whole.keys.shape[2], self.settings.seed)
        scores = scores.masked_fill(places_LBHS == 0, math.inf).masked_fill(places_LBHS < 0, -math.inf)
        return whole.take(kept_slots(scores, *by_row(lambda read: [self.settings.kept(read)], whole.next)))


def drawn(places_LBHS: Tensor, layers: int, heads: int, seed: int) -> Tensor:
    """Uniform numbers in [0, 1), float32 [L, B, H, S], by seed, place in the text, layer and head alone."""
    number_LH = torch.arange(layers * heads, device=places_LBHS.device).view(layers, 1, heads, 1)
    mixed = _mixed(_mixed(_mixed(number_LH + 1) ^ (seed & 0xFFFFFFFF)) ^ _mixed(places_LBHS + 1))
    return (mixed >> 8).float() / 2**24  # as many bits as float32 holds


def _mixed(numbers: Tensor) -> Tensor:
    """A hash of 32 bits, in which every bit given changes about half of them; int64, which no product exceeds."""
    numbers = ((numbers ^ (numbers >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return numbers ^ (numbers >> 15)
