"""Settings of every method with low-rank factors of linear maps (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.bounds import at_least


@dataclass(frozen=True, kw_only=True)
class LoraShape:
    """Settings of every method with LoRA factors."""

    rank: int = 64
    """Rank of each delta."""
    alpha: float = 64.0
    """Deltas are scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the adapted linear maps; none means every one inside the layers."""
    seed: int = 0
    """Of the factors at the start, and of dropout."""

    def __post_init__(self) -> None:
        at_least(1, rank=self.rank)

    @property
    def scale(self) -> float:
        """Factor that B A is multiplied by."""
        return self.alpha / self.rank
