"""The metric."""

from __future__ import annotations

from ttabench.extend import Query


def first_letter(prediction: str, query: Query) -> float:
    """Return 1 if prediction and target answer begin with the same letter, else 0."""
    return float(prediction[:1] == query.answers[0][:1])
