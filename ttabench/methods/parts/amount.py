"""How much to keep: so many tokens, or a share of the context.

budget=256      256 tokens
budget=0.2      a fifth of the tokens read so far
"""

from __future__ import annotations

from typing import TypeAlias

Amount: TypeAlias = int | float
"""Tokens (int), or a share of the tokens read so far (float)."""


def check_amount(name: str, amount: Amount) -> None:
    """Whether an amount is at least one token, or a share of at most all."""
    share = isinstance(amount, float)
    if not (0.0 < amount <= 1.0 if share else amount >= 1):
        allowed = "a share of the context must lie in (0, 1]" if share else "at least 1 token is needed"
        raise ValueError(f"{name}: {allowed}, got {amount}")
