"""From how many queries about one context a method has cost less than full context, whose cache is read once and kept.

    break_even(100 + 2 a query, full context 40 + 5 a query)  ->  20, "from"

Costs may be operations on paper or seconds as measured.
"""

from __future__ import annotations

import math


def break_even(adapt: float, ask: float, full_adapt: float, full_ask: float) -> tuple[int | None, str]:
    """From or until how many queries a method costs no more than full context, and which.

    Args:
        adapt: what a method's reading costs.
        ask: what a query costs it.
        full_adapt: what full context's reading costs, in the same unit.
        full_ask: a query.

    Returns:
        The number of queries (0 with "always", None with "never"), and "always", "from", "until" or "never".
    """
    more, saved = adapt - full_adapt, full_ask - ask
    if more <= 0 and saved >= 0:
        return 0, "always"
    if saved > 0:
        return _quotient(more, saved, up=True), "from"
    until = _quotient(-more, -saved, up=False) if saved else 0
    return (until, "until") if until > 0 else (None, "never")


def break_even_words(queries: int | None, cheaper: str) -> str:
    """As it stands in a table: `from 20`, `until 3`, `always`, `never`."""
    return f"{cheaper} {queries:,}" if cheaper in ("from", "until") else cheaper


def _quotient(cost: float, saved: float, *, up: bool) -> int:
    if isinstance(cost, int) and isinstance(saved, int):
        return -(-cost // saved) if up else cost // saved  # operations go beyond what a float tells apart
    return math.ceil(cost / saved) if up else math.floor(cost / saved)
