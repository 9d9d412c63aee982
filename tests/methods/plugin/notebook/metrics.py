"""A metric: a function of what was answered and of the query."""

from __future__ import annotations

from ttabench.extend import Query


def opening(prediction: str, ask: Query) -> float:
    """Whether the answer begins with the letter that the right one begins with."""
    return float(prediction[:1] == ask.answers[0][:1])
