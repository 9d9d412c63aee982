"""Settings that several methods share: low-rank factors (LoRA, arXiv 2106.09685), descent, how much to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ttabench.core.errors import require_at_least
from ttabench.core.types import Json


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
        require_at_least(1, rank=self.rank)

    @property
    def scale(self) -> float:
        """Factor that B A is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class DescentSettings:
    """How Adam trains all weights of the base on documents; its moments are carried from document to document."""

    lr: float = 1e-4
    """Learning rate: chosen on validation data."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    eps: float = 1e-8
    """Adam's."""
    clip: float = 750.0
    """Largest norm of the gradient."""
    max_tokens: int = 1024
    """First tokens of a document that are read."""
    dropout: bool = True
    """Whether the base's own dropout is on in a gradient step, drawn from the seed and the number of the step."""
    seed: int = 0
    """Of dropout, and of whatever else a method draws."""

    def __post_init__(self) -> None:
        require_at_least(2, max_tokens=self.max_tokens)
        require_at_least(0, lr=self.lr, eps=self.eps)
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2 must lie in [0, 1), got {self.beta2}")
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")


Amount: TypeAlias = int | float
"""Tokens (int), or a share of the tokens read so far (float)."""


def check_amount(name: str, amount: Amount) -> None:
    """Whether an amount is at least one token, or a share of at most all."""
    share = isinstance(amount, float)
    if not (0.0 < amount <= 1.0 if share else amount >= 1):
        allowed = (
            "a share of the context must lie in (0, 1]" if share else "at least 1 token is needed"
        )
        raise ValueError(f"{name}: {allowed}, got {amount}")


def in_tokens(amount: Amount, read: int) -> int:
    """The amount in tokens, of so many that were read; shares are rounded down, at least 1."""
    return max(1, int(amount * read)) if isinstance(amount, float) else amount


def as_budget(amount: Amount) -> dict[str, Json]:
    """The amount as the setting `budget`: the `MethodSpec.keep` of methods that have one."""
    return {"budget": amount}
