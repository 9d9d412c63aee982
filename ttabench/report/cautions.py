"""Where the errors of a block are too small: what varies is there once, and another one may differ."""

from __future__ import annotations

from collections import Counter

from ttabench.report.compare import Block
from ttabench.stats.aggregation import Unit


def lone(block: Block) -> bool:
    """Whether what varies is there once (in every sub-task), and has several queries; see `stats.estimate`."""
    clusters: dict[str, Counter[str]] = {}
    for value in (value for values in block.values for value in values.values()):
        name, stratum = (value.text, "") if isinstance(value, Unit) else (value.cluster, value.stratum)
        clusters.setdefault(stratum, Counter())[name] += 1
    several = any(count > len(block.values) for own in clusters.values() for count in own.values())
    return several and all(len(own) == 1 for own in clusters.values())
