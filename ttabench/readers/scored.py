"""Tasks that score given texts (perplexity): what their cards may measure."""

from __future__ import annotations

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.stats.metrics import METRICS, metric


def check_metrics(card: Card) -> None:
    """Whether all metrics of a card are ones of scored texts."""
    for name in card.metrics:
        if metric(name).ratio is None:
            known = ", ".join(known for known, known_metric in METRICS.items() if known_metric.ratio)
            raise UserError(f"The task card {card.name}: {name} is no metric of scored texts.", f"Give {known}.")
