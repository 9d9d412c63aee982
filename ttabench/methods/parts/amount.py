"""How much to keep: so many tokens, or a share of the context."""

from __future__ import annotations

from typing import TypeAlias

from ttabench.core.types import Json

Amount: TypeAlias = int | float
"""Tokens (int), or a share of the tokens read so far (float)."""


def check_amount(name: str, amount: Amount) -> None:
    """Whether an amount is at least one token, or a share of at most all."""
    share = isinstance(amount, float)
    if not (0.0 < amount <= 1.0 if share else amount >= 1):
        allowed = "a share of the context must lie in (0, 1]" if share else "at least 1 token is needed"
        raise ValueError(f"{name}: {allowed}, got {amount}")


def in_tokens(amount: Amount, read: int) -> int:
    """The amount in tokens, of so many that were read; shares are rounded down, at least 1."""
    return max(1, int(amount * read)) if isinstance(amount, float) else amount


def as_budget(amount: Amount) -> dict[str, Json]:
    """The amount as the setting `budget`: the `MethodSpec.keep` of methods that have one."""
    return {"budget": amount}
