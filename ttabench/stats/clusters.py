"""How far a sum of pulls varies: over clusters, or both ways where the same clusters stand in several groups.

    spread([Observed("doc1"), Observed("doc1"), Observed("doc2")], pulls, weights)                 over two documents

One way, with e_c the sum of the pulls of cluster c, in strata s of G_s clusters each: var = sum_s G_s/(G_s - 1)
sum_c (e_c - mean_s e)^2 (Cochran 1977, sections 5A and 6.4; Liang and Zeger 1986), sum_s (G_s - 1) degrees of freedom.
Where every stratum has one cluster only, its questions are what varies, and the error is too small: nothing tells how
another cluster would differ. The same where clusters agree by luck, so that an error of 0 is none of theirs. A single
cluster of its stratum counts by how far it is from the whole figure; where every stratum has one question, they are
taken as of one stratum.

Both ways (`two_way_variance`), the model: a cell's mean is an effect of its row, one of its column and one of its own, all
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

CellSums: TypeAlias = dict[tuple[str, str], tuple[float, float]]
"""(sum of pulls, weight) by row and column, of one stratum."""
ZERO_ERROR_RATIO = 1e-9
"""Below this share of the error over questions an error over clusters is 0."""
SINGULAR_VALUE_RATIO = 1e-9
"""Below this share of the largest, a singular value is 0."""


class Observation(NamedTuple):
    """The terms of one query, or of one scored stretch of text."""

    cluster: str
    """Which document, draw or book it is of."""
    terms: tuple[Any, ...] = ()
    """As many numbers as the figure sums; before it has made these, what it makes them of."""
    stratum: str = ""
    """Clusters of different strata differ by more than chance: sub-tasks."""
    crossed: str = ""
    """What else varies, and may hold several clusters and be held by several: of draws the question, of documents the
    draw. Of worlds that share nothing it is empty."""
    question: str = ""
    """Which question, where one may be asked several times; empty where every query asks another."""


class VarianceEstimate(NamedTuple):
    """How far a sum varies."""

    stderr: float
    """Standard error."""
    degrees_of_freedom: float
    """Degrees of freedom."""
    units: int
    """Clusters, or questions where every stratum has one cluster."""
    effective_units: float
    """How many units tell the error: where two things vary, one more than degrees of freedom."""
    is_independent: bool = False
    """Whether every unit is one query, and nothing else is known to vary."""
    crossed: int = 0
    """How many of what else varies; 0 where nothing does."""


def estimate_variance(
    observations: Sequence[Observation], influence_values: Sequence[float], weights: Sequence[float]
) -> VarianceEstimate | None:
    """Of the sum of pulls (how far each pulls the figure away from where it is), with the weights of its mean (tokens,
    or 1 a query). None where there is one cluster with one question."""
    cells: defaultdict[str, CellSums] = defaultdict(dict)
    for term, influence, weight in zip(observations, influence_values, weights, strict=True):
        own, key = cells[term.stratum], (term.cluster, term.crossed)
        before = own.get(key, (0.0, 0.0))
        own[key] = before[0] + influence, before[1] + weight
    strata = _sums_by_name(
        observations,
        influence_values,
        [term.question or str(place) for place, term in enumerate(observations)],
    )
    clusters, crossed = (
        sum(len({key[side] for key in own}) for own in cells.values()) for side in (0, 1)
    )
    if len(strata) > 1 and all(
        len(questions) == 1 for questions in strata.values()
    ):  # as if they were of one stratum
        one = _one_way({"": [questions[0] for questions in strata.values()]}, len(influence_values))
        if one is None or clusters == len(strata):
            return one
        return one._replace(units=clusters, crossed=len(strata))
    is_nested = len(cells) < crossed < clusters  # documents in draws that share none
    is_crossed = sum(map(len, cells.values())) > max(
        clusters, crossed
    )  # else one of them holds the other
    if is_nested or is_crossed:
        stderr, degrees_of_freedom = two_way_variance(list(cells.values()))
        return VarianceEstimate(
            stderr, degrees_of_freedom, clusters, degrees_of_freedom + 1, crossed=crossed
        )
    by_question = _one_way(strata, len(influence_values))
    by_cluster = _one_way(
        _sums_by_name(observations, influence_values, [term.cluster for term in observations]),
        len(influence_values),
    )
    if by_cluster is None:
        return by_question
    if by_question is not None and by_cluster.stderr < ZERO_ERROR_RATIO * by_question.stderr:
        return VarianceEstimate(
            by_question.stderr,
            by_question.degrees_of_freedom,
            by_cluster.units,
            by_question.degrees_of_freedom + 1,
        )
    return by_cluster


def _sums_by_name(
    observations: Sequence[Observation], influence_values: Sequence[float], names: Sequence[str]
) -> dict[str, list[float]]:
    """Pulls summed by name, in strata."""
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, influence, name in zip(observations, influence_values, names, strict=True):
        sums[one.stratum][name].append(influence)
    return {
        stratum: [math.fsum(own) for own in clusters.values()] for stratum, clusters in sums.items()
    }


def _one_way(strata: Mapping[str, list[float]], n: int) -> VarianceEstimate | None:
    """None where every stratum has one cluster."""
    units = sum(map(len, strata.values()))
    if units == len(strata):
        return None
    variance = 0.0
    for values in strata.values():
        mean, count = math.fsum(values) / len(values), len(values)
        squares = (
            count / (count - 1) * math.fsum((value - mean) ** 2 for value in values)
            if count > 1
            else mean**2
        )
        variance += squares  # of a single one, how far it is from all of them
    return VarianceEstimate(
        math.sqrt(variance), units - len(strata), units, units, is_independent=units == n
    )


def two_way_variance(strata: Sequence[CellSums]) -> tuple[float, float]:
    """(standard error of the sum of all pulls, degrees of freedom) of a crossed design."""
    degrees_by_side = [
        sum(len({key[side] for key in cells}) - 1 for cells in strata) for side in (0, 1)
    ]
    both, rows, columns = (math.fsum(parts) for parts in zip(*map(_variances, strata), strict=True))
    (few, least), (many, most) = sorted(
        zip((rows, columns), degrees_by_side, strict=True), key=lambda side: side[1]
    )
    variance = max(both, few, many)
    if variance == many:
        return math.sqrt(variance), most
    share = few / variance
    return math.sqrt(variance), 1 / (share / least + (1 - share) / most)


def _variances(cells: CellSums) -> tuple[float, float, float]:
    """Of one stratum: of both ways, and clustered by row and by column. Shape letters: R rows, C columns."""
    import numpy as np

    rows, columns = (
        np.unique([key[side] for key in cells], return_inverse=True)[1] for side in (0, 1)
    )
    influence_RC, weights_RC = np.zeros((2, max(rows) + 1, max(columns) + 1))
    influence_RC[rows, columns], weights_RC[rows, columns] = zip(*cells.values(), strict=True)
    squared_total = (
        float(influence_RC.sum()) ** 2
    )  # from the whole figure: all that one row or column tells
    influence_RC -= influence_RC.sum() / weights_RC.sum() * weights_RC
    weights_RC /= weights_RC.sum()
    sums = influence_RC.sum(1), influence_RC.sum(0)
    squares = np.array(
        [float((influence_values**2).sum()) for influence_values in (*sums, influence_RC)]
    )
    clustered = [
        square * len(own) / (len(own) - 1) if len(own) > 1 else squared_total
        for square, own in zip(squares.tolist(), sums, strict=False)
    ]
    factors = np.linalg.lstsq(*_moments(weights_RC), rcond=SINGULAR_VALUE_RATIO)[0]
    return (
        float(factors @ squares) + (squared_total if 1 in map(len, sums) else 0.0),
        clustered[0],
        clustered[1],
    )


def _moments(weights_RC: Any) -> tuple[Any, Any]:
    """What sums of squares over rows, columns and cells are expected to be, and the variance of the figure: how much of
    each variance of an effect (of rows, columns, cells) they hold, where pulls are w_ij (mean_ij - figure)."""
    import numpy as np

    rows, columns, squared = (
        weights_RC.sum(1, keepdims=True),
        weights_RC.sum(0, keepdims=True),
        weights_RC**2,
    )
    weight_squares = np.array(
        [float((weights**2).sum()) for weights in (rows, columns, weights_RC)]
    )
    both = (squared - 2 * weights_RC * rows * columns).sum()
    in_rows, in_columns = ((squared * (1 - 2 * weights)).sum() for weights in (rows, columns))
    moments = [
        [(rows**2 * (1 - 2 * rows)).sum(), both, in_rows],
        [both, (columns**2 * (1 - 2 * columns)).sum(), in_columns],
        [in_rows, in_columns, (squared * (1 - 2 * weights_RC)).sum()],
    ]
    return np.outer(weight_squares, weight_squares) + moments, weight_squares


# --- what varies from one reader to the next: the `unit` of a task ---------------------------------------------------

SamplingUnit: TypeAlias = Literal[
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
RESAMPLED_SOURCES = ("mini", "generated")
"""Sources whose every seed has rows of its own."""
EPISODE_UNITS: tuple[SamplingUnit, ...] = ("book", "conversation", "dialogue", "user", "context")
"""An episode is one of these."""
UNIT_BY_READER: dict[str, SamplingUnit] = {
    "qa_stream": "document",
    "demonstrations": "draw",
    "metaicl": "draw",
    "book": "book",
    "sessions": "conversation",
}
"""By reader, of records that do not say it: those of earlier versions."""


def sampling_unit(task: Mapping[str, object]) -> SamplingUnit:
    """Of a task as records describe it."""
    unit = task.get("unit") or UNIT_BY_READER.get(str(task.get("reader")), "query")
    assert unit in get_args(SamplingUnit), unit
    return unit  # type: ignore[return-value]


class Draw(NamedTuple):
    """A run as one of several that differ in their seed."""

    unit: SamplingUnit
    seed: int
    is_fresh: bool
    """Whether every seed has rows of its own; published rows are the same, and their order or demonstrations differ."""


def observation_of_query(
    draw: Draw, episode: str, key: str, source_key: str = "", question: str = ""
) -> Observation:
    """Where a query of a run stands among what varies, by its episode, its key and that of the document it is about (""
    where that is not known); `question` is what is the same wherever the same is asked, with the same right answers, by
    default the key."""
    seed, world = str(draw.seed), f"{draw.seed} {episode} " if draw.is_fresh else ""
    questions = world + (question or key)
    if draw.unit == "draw":
        return Observation(seed, crossed=questions, question=questions)
    if draw.unit == "group":
        return Observation(episode, crossed=world + (source_key or key), question=questions)
    inside = (
        episode if draw.unit in EPISODE_UNITS else (draw.unit == "document" and source_key) or key
    )
    return Observation(world + inside, crossed="" if draw.is_fresh else seed, question=questions)
