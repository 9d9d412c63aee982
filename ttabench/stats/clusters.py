"""How far a sum of pulls varies: over clusters, or both ways where the same clusters stand in several groups.

    spread([Observed("doc1"), Observed("doc1"), Observed("doc2")], pulls, weights)                 over two documents

One way, with e_c the sum of the pulls of cluster c, in strata s of G_s clusters each: var = sum_s G_s/(G_s - 1)
sum_c (e_c - mean_s e)^2 (Cochran 1977, sections 5A and 6.4; Liang and Zeger 1986), sum_s (G_s - 1) degrees of freedom.
Where every stratum has one cluster only, its questions are what varies, and the error is too small: nothing tells how
another cluster would differ. The same where clusters agree by luck, so that an error of 0 is none of theirs. A single
cluster of its stratum counts by how far it is from the whole figure; where every stratum has one question, they are
taken as of one stratum.

Both ways (`two_way`), the model: a cell's mean is an effect of its row, one of its column and one of its own, all
independent. Of cells with weights w (summing to 1) the figure then varies by V = A sum_i w_i.^2 + B sum_j w_.j^2 +
C sum_ij w_ij^2, with A, B, C the variances of the effects. What the sums of squares of pulls over rows, columns and
cells are expected to be is linear in A, B and C, and so V is estimated without bias (the method of moments: Henderson
1953, method 1). Of many rows and columns it is V_rows + V_columns - V_cells, the two-way clustered variance (Cameron,
Gelbach and Miller 2011); where columns are nested in rows, V_rows. V is at least V_rows and V_columns, the variances
clustered one way. Of these let V_few have the fewer degrees of freedom, f, and V_many more, m. Where V = V_many there
are m degrees of freedom, else 1/(s/f + (1 - s)/m) with s = V_few/V: Satterthwaite's, but with shares in place of their
squares, for with three columns that rule holds the truth in as few as 91 per cent (tests/stats/test_crossing.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Cells: TypeAlias = dict[tuple[str, str], tuple[float, float]]
"""(sum of pulls, weight) by row and column, of one stratum."""
LUCK = 1e-9
"""Below this share of the error over questions an error over clusters is 0."""
SINGULAR = 1e-9
"""Below this share of the largest, a singular value is 0."""


class Observed(NamedTuple):
    """The terms of one query, or of one scored stretch of text."""

    cluster: str
    """Which document, draw or book it is of."""
    terms: tuple[Any, ...] = ()
    """As many numbers as the figure sums; before it has made these, what it makes them of."""
    stratum: str = ""
    """Clusters of different strata differ by more than chance: sub-tasks."""
    across: str = ""
    """What else varies, and may hold several clusters and be held by several: of draws the question, of documents the
    draw. Of worlds that share nothing it is empty."""
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


def spread(observed: Sequence[Observed], pulls: Sequence[float], weights: Sequence[float]) -> Spread | None:
    """Of the sum of pulls (how far each pulls the figure away from where it is), with the weights of its mean (tokens,
    or 1 a query). None where there is one cluster with one question."""
    cells: defaultdict[str, Cells] = defaultdict(dict)
    for term, pull, weight in zip(observed, pulls, weights, strict=True):
        own, key = cells[term.stratum], (term.cluster, term.across)
        before = own.get(key, (0.0, 0.0))
        own[key] = before[0] + pull, before[1] + weight
    strata = _sums(observed, pulls, [term.question or str(place) for place, term in enumerate(observed)])
    clusters, across = (sum(len({key[side] for key in own}) for own in cells.values()) for side in (0, 1))
    if len(strata) > 1 and all(len(asked) == 1 for asked in strata.values()):  # as if they were of one stratum
        one = _one_way({"": [asked[0] for asked in strata.values()]}, len(pulls))
        if one is None or clusters == len(strata):
            return one
        return one._replace(units=clusters, across=len(strata))
    nested = len(cells) < across < clusters  # documents in draws that share none
    crossed = sum(map(len, cells.values())) > max(clusters, across)  # else one of them holds the other
    if nested or crossed:
        error, freedom = two_way(list(cells.values()))
        return Spread(error, freedom, clusters, freedom + 1, across=across)
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
        squares = count / (count - 1) * math.fsum((value - mean) ** 2 for value in values) if count > 1 else mean**2
        variance += squares  # of a single one, how far it is from all of them
    return Spread(math.sqrt(variance), units - len(strata), units, units, independent=units == n)


def two_way(strata: Sequence[Cells]) -> tuple[float, float]:
    """(standard error of the sum of all pulls, degrees of freedom) of a crossed design."""
    freedoms = [sum(len({key[side] for key in cells}) - 1 for cells in strata) for side in (0, 1)]
    both, rows, columns = (math.fsum(parts) for parts in zip(*map(_variances, strata), strict=True))
    (few, least), (many, most) = sorted(zip((rows, columns), freedoms, strict=True), key=lambda side: side[1])
    variance = max(both, few, many)
    if variance == many:
        return math.sqrt(variance), most
    share = few / variance
    return math.sqrt(variance), 1 / (share / least + (1 - share) / most)


def _variances(cells: Cells) -> tuple[float, float, float]:
    """Of one stratum: of both ways, and clustered by row and by column. Shape letters: R rows, C columns."""
    import numpy as np

    rows, columns = (np.unique([key[side] for key in cells], return_inverse=True)[1] for side in (0, 1))
    pulls_RC, weights_RC = np.zeros((2, max(rows) + 1, max(columns) + 1))
    pulls_RC[rows, columns], weights_RC[rows, columns] = zip(*cells.values(), strict=True)
    far = float(pulls_RC.sum()) ** 2  # from the whole figure: all that one row or column tells
    pulls_RC -= pulls_RC.sum() / weights_RC.sum() * weights_RC
    weights_RC /= weights_RC.sum()
    sums = pulls_RC.sum(1), pulls_RC.sum(0)
    squares = np.array([float((pulls**2).sum()) for pulls in (*sums, pulls_RC)])
    clustered = [square * len(own) / (len(own) - 1) if len(own) > 1 else far
                 for square, own in zip(squares.tolist(), sums, strict=False)]  # fmt: skip
    factors = np.linalg.lstsq(*_moments(weights_RC), rcond=SINGULAR)[0]
    return float(factors @ squares) + (far if 1 in map(len, sums) else 0.0), clustered[0], clustered[1]


def _moments(weights_RC: Any) -> tuple[Any, Any]:
    """What sums of squares over rows, columns and cells are expected to be, and the variance of the figure: how much of
    each variance of an effect (of rows, columns, cells) they hold, where pulls are w_ij (mean_ij - figure)."""
    import numpy as np

    rows, columns, squared = weights_RC.sum(1, keepdims=True), weights_RC.sum(0, keepdims=True), weights_RC**2
    wanted = np.array([float((weights**2).sum()) for weights in (rows, columns, weights_RC)])
    both = (squared - 2 * weights_RC * rows * columns).sum()
    in_rows, in_columns = ((squared * (1 - 2 * weights)).sum() for weights in (rows, columns))
    held = [
        [(rows**2 * (1 - 2 * rows)).sum(), both, in_rows],
        [both, (columns**2 * (1 - 2 * columns)).sum(), in_columns],
        [in_rows, in_columns, (squared * (1 - 2 * weights_RC)).sum()],
    ]
    return np.outer(wanted, wanted) + held, wanted


# --- what varies from one reader to the next: the `unit` of a task ---------------------------------------------------

Varying: TypeAlias = Literal[
    "query", "document", "group", "draw", "book", "conversation", "dialogue", "user", "context"
]
"""By default a query by itself, or what makes queries resemble each other:

document      queries about one document resemble each other
group         documents that are read together, which one state answers, and the queries about them resemble each other
draw          all queries of a sub-task are asked after the demonstrations of one draw; a run is one draw
book          strides of one text resemble each other
conversation  queries about one conversation, and its turns, resemble each other
dialogue      turns of one dialogue resemble each other
user          queries of one user resemble each other, those after more of a profile too
context       queries about one context resemble each other

Published questions and documents stand in several draws: then both vary. Groups of one draw share no document, so
their error is that of documents, too; another draw puts the same documents into other groups, and both vary. Every
seed of the miniature world is a world of its own, with other questions and documents.
"""
FRESH = ("mini", "generated")
"""Sources whose every seed has rows of its own."""
EPISODES: tuple[Varying, ...] = ("book", "conversation", "dialogue", "user", "context")
"""An episode is one of these."""
OF_READERS: dict[str, Varying] = {
    "qa_stream": "document",
    "demonstrations": "draw",
    "metaicl": "draw",
    "book": "book",
    "sessions": "conversation",
}
"""By reader, of records that do not say it: those of earlier versions."""


def unit_of(task: Mapping[str, object]) -> Varying:
    """Of a task as records describe it."""
    unit = task.get("unit") or OF_READERS.get(str(task.get("reader")), "query")
    assert unit in get_args(Varying), unit
    return unit  # type: ignore[return-value]


class Draw(NamedTuple):
    """A run as one of several that differ in their seed."""

    unit: Varying
    seed: int
    fresh: bool
    """Whether every seed has rows of its own; published rows are the same, and their order or demonstrations differ."""


def origin(draw: Draw, episode: str, key: str, source_key: str = "", question: str = "") -> Observed:
    """Where a query of a run stands among what varies, by its episode, its key and that of the document it is about (""
    where that is not known); `question` is what is the same wherever the same is asked, with the same right answers, by
    default the key."""
    seed, world = str(draw.seed), f"{draw.seed} {episode} " if draw.fresh else ""
    asked = world + (question or key)
    if draw.unit == "draw":
        return Observed(seed, across=asked, question=asked)
    if draw.unit == "group":
        return Observed(episode, across=world + (source_key or key), question=asked)
    inside = episode if draw.unit in EPISODES else (draw.unit == "document" and source_key) or key
    return Observed(world + inside, across="" if draw.fresh else seed, question=asked)
