"""Shared settings: LoRA factors (arXiv 2106.09685), gradient descent and budgets."""

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
    """Scale of the deltas: alpha / rank."""
    targets: tuple[str, ...] = ()
    """Last names of the adapted linear maps, by default all inside the layers."""
    seed: int = 0
    """Seed of the initial factors and of dropout."""

    def __post_init__(self) -> None:
        require_at_least(1, rank=self.rank)

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class DescentSettings:
    """Settings of Adam on all weights of the base model. Moments are kept between documents."""

    lr: float = 1e-4
    """Learning rate, chosen on validation data."""
    beta2: float = 0.999
    """Adam's beta2."""
    eps: float = 1e-8
    """Adam's epsilon."""
    clip: float = 750.0
    """Maximum norm of the gradient."""
    max_tokens: int = 1024
    """Maximum tokens read of a document."""
    dropout: bool = True
    """True to use the base model's dropout in gradient steps, seeded by `seed` and step number."""
    seed: int = 0
    """Seed of dropout and of all other random choices of a method."""

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
    """Raise ValueError unless an amount is at least 1 token, or a share in (0, 1]."""
    if isinstance(amount, float):
        if not 0.0 < amount <= 1.0:
            raise ValueError(f"{name} as a share of the context must be in (0, 1], got {amount}")
    elif not amount >= 1:
        raise ValueError(f"{name} must be at least 1 token, got {amount}")


def in_tokens(amount: Amount, read: int) -> int:
    """Convert an amount to tokens, after `read` tokens. Shares are rounded down, to at least 1."""
    return max(1, int(amount * read)) if isinstance(amount, float) else amount


def text_tokens(amount: Amount, read: int, starts: int) -> int:
    """Convert a budget of a text to tokens, after `read` tokens.

    The `starts` tokens before it (BOS, or the opening of a chat) count towards the budget.
    """
    return max(1, in_tokens(amount, read + starts) - starts)


def as_budget(amount: Amount) -> dict[str, Json]:
    """Return the amount as the setting `budget`, for `MethodSpec.keep`."""
    return {"budget": amount}
