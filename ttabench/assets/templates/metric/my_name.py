"""my_name: the share of the target answer's words that the prediction contains.

Run it:  ttabench eval --method icl --task streamingqa --metric ./my_name.py
"""

from __future__ import annotations

from ttabench.extend import Query


def my_name(prediction: str, query: Query) -> float:
    """Return a value from 0 to 1; higher is better. `query.answers` has the target first."""
    predicted, expected = prediction.lower().split(), query.answers[0].lower().split()
    return sum(word in predicted for word in expected) / max(1, len(expected))
