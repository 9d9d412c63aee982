"""Random slots: a control with the memory of a method that selects."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.methods.eviction.spec import DEPRECATED_JOIN, BudgetSettings, eviction_spec


@dataclass(frozen=True, kw_only=True)
class RandomSlotsSettings(BudgetSettings):
    """Settings of `random_slots`."""

    seed: int = 0
    """Seed of the choice. The first token of the text is always kept."""


RANDOM_SLOTS = eviction_spec(
    "random_slots",
    "random slots: a control with the same memory",
    import_path="ttabench.methods.eviction.random_slots.method:RandomSlots",
    Settings=RandomSlotsSettings,
    presets={"stream": RandomSlotsSettings(budget=512, chunk=512, positions="auto")},
    test_settings=RandomSlotsSettings(budget=16),
    deprecated_settings=DEPRECATED_JOIN,
)
