"""How far a sum of pulls varies: over clusters, or both ways where the same clusters stand in several groups.

    spread([single("doc1", 1.0), single("doc1", 0.0), single("doc2", 1.0)], pulls, weights)      over two documents

One way, with e_c the sum of the pulls of cluster c, in strata s of G_s clusters each: var = sum_s G_s/(G_s - 1)
sum_c (e_c - mean_s e)^2 (Cochran 1977, sections 5A and 6.4; Liang and Zeger 1986), sum_s (G_s - 1) degrees of freedom.

Where every stratum has one cluster only, its questions are what varies, and the error is too small: nothing tells how
another cluster would differ. The same where clusters agree by luck, so that an error of 0 is none of theirs. A single
cluster of its stratum counts by how far it is from the whole figure; where every stratum has one question, they are
taken as of one stratum. Where clusters cross groups see `crossing`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ttabench.stats.crossing import Cells, crossed, two_way

LUCK = 1e-9
"""Below this share of the error over questions an error over clusters is 0."""


class Observed(NamedTuple):
    """The terms of one query, or of one scored stretch of text."""

    cluster: str
    """Which document, draw or book it is of."""
    terms: tuple[float, ...]
    """As many as the figure sums."""
    stratum: str = ""
    """Clusters of different strata differ by more than chance: sub-tasks."""
    across: str = ""
    """What else varies, and may hold several clusters and be held by several: of draws the question, of documents the
    draw."""
    question: str = ""
    """Which question, where one may be asked several times; empty where every query asks another."""


class Spread(NamedTuple):
    """How far a sum varies."""

    error: float
    """Standard error."""
    freedom: float
    """Degrees of freedom."""
    units: int
    """Clusters, or questions where every stratum has one cluster."""
    trials: float
    """How many units tell the error: where two things vary, one more than degrees of freedom."""
    independent: bool = False
    """Whether every unit is one query, and nothing else is known to vary."""
    across: int = 0
    """How many of what else varies; 0 where nothing does."""
    shares: tuple[float, float] = (1.0, 0.0)
    """How much of the variance clusters show by themselves, and what else varies."""


def spread(observed: Sequence[Observed], pulls: Sequence[float], weights: Sequence[float]) -> Spread | None:
    """Of the sum of pulls; None where there is one cluster with one question.

    Args:
        observed: what it is of.
        pulls: how far each pulls the figure away from where it is.
        weights: what the figure is a mean over: how many tokens, or 1 a query.
    """
    cells: defaultdict[str, Cells] = defaultdict(dict)
    for term, pull, weight in zip(observed, pulls, weights, strict=True):
        own, key = cells[term.stratum], (term.cluster, term.across)
        before = own.get(key, (0.0, 0.0))
        own[key] = before[0] + pull, before[1] + weight
    strata = _sums(observed, pulls, [term.question or str(place) for place, term in enumerate(observed)])
    clusters, across = (sum(len({key[side] for key in own}) for own in cells.values()) for side in (0, 1))
    if len(strata) > 1 and all(len(asked) == 1 for asked in strata.values()):  # as if they were of one stratum
        one = _one_way({"": [asked[0] for asked in strata.values()]}, len(pulls))
        return (
            one
            if one is None or clusters == len(strata)
            else one._replace(units=clusters, across=len(strata), shares=(0.0, 1.0))
        )
    if crossed(list(cells.values())):
        variance = two_way(list(cells.values()))
        return Spread(
            variance.error, variance.freedom, clusters, variance.freedom + 1, across=across, shares=variance.shares
        )
    fine = _one_way(strata, len(pulls))
    coarse = _one_way(_sums(observed, pulls, [term.cluster for term in observed]), len(pulls))
    if coarse is None:
        return fine
    if fine is not None and coarse.error < LUCK * fine.error:
        return Spread(fine.error, fine.freedom, coarse.units, fine.freedom + 1)
    return coarse


def _sums(observed: Sequence[Observed], pulls: Sequence[float], names: Sequence[str]) -> dict[str, list[float]]:
    """Pulls summed by name, in strata."""
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, pull, name in zip(observed, pulls, names, strict=True):
        sums[one.stratum][name].append(pull)
    return {stratum: [math.fsum(own) for own in clusters.values()] for stratum, clusters in sums.items()}


def _one_way(strata: Mapping[str, list[float]], n: int) -> Spread | None:
    """None where every stratum has one cluster."""
    units = sum(map(len, strata.values()))
    if units == len(strata):
        return None
    variance = 0.0
    for values in strata.values():
        mean, count = math.fsum(values) / len(values), len(values)
        if count == 1:  # how far it is from all of them
            variance += mean**2
        else:
            variance += count / (count - 1) * math.fsum((value - mean) ** 2 for value in values)
    return Spread(math.sqrt(variance), units - len(strata), units, units, independent=units == n)
