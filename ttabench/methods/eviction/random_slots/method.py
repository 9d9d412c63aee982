"""Random slots: scores are hashes of seed, text position, layer and head."""

from __future__ import annotations

import torch
from torch import Tensor

from ttabench.methods.eviction.random_slots import RANDOM_SLOTS, RandomSlotsSettings
from ttabench.methods.eviction.scoring import ScoringMethod


class RandomSlots(ScoringMethod[RandomSlotsSettings]):
    """Random slots of the context's cache."""

    spec = RANDOM_SLOTS

    def always_kept(self, read: int) -> tuple[int, int]:  # noqa: ARG002  # base class
        """Return the first slot."""
        return 1, 0

    def score(self, positions: Tensor) -> Tensor:
        """Hash seed, position, layer and head to numbers in [0, 1)."""
        layers, heads = len(self.lm.kv_layers), self.lm.kv_heads
        number_LH1 = torch.arange(1, layers * heads + 1, device=positions.device)
        number_LH1 = number_LH1.view(layers, heads, 1)
        seeded = _hash32(_hash32(number_LH1) ^ (self.settings.seed & 0xFFFFFFFF))
        mixed = _hash32(seeded ^ _hash32(positions + 1))
        return (mixed >> 8).float() / 2**24  # 24 bits: the precision of float32


def _hash32(numbers: Tensor) -> Tensor:
    """Hash to 32 bits, where each input bit changes about half of them; int64 avoids overflow."""
    numbers = ((numbers ^ (numbers >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    numbers = ((numbers ^ (numbers >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return numbers ^ (numbers >> 15)
