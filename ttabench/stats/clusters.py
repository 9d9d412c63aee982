"""Variance of a sum of influence values, clustered in one or two ways.

    values = [Observation("doc1"), Observation("doc1"), Observation("doc2")]
    estimate_variance(values, influence_values, weights)            clustered over two documents

One way: e_c is the sum of the influence values of cluster c, and stratum s has G_s clusters. Then
var = sum_s G_s/(G_s - 1) sum_c (e_c - mean_s e)^2 (Cochran 1977, sections 5A and 6.4; Liang and
Zeger 1986), with sum_s (G_s - 1) degrees of freedom. If every stratum has only one cluster, the
variance is that over questions. It is too small, because the variance between clusters is unknown.
The same applies if clusters agree by chance, so that the clustered error is 0. A single cluster in
its stratum counts with its distance from the overall figure. If every stratum has one question, all
questions are treated as one stratum.

Two ways (`two_way_variance`): the mean of a cell is the sum of a row effect, a column effect and a
cell effect, all independent. With cell weights w (summing to 1), the figure has the variance V = A
sum_i w_i.^2 + B sum_j w_.j^2 + C sum_ij w_ij^2, where A, B, C are the variances of the effects. The
expected sums of squares of influence values over rows, columns and cells are linear in A, B and C.
So V is estimated without bias by the method of moments (Henderson 1953, method 1). For many rows
and columns it is V_rows + V_columns - V_cells, the two-way clustered variance (Cameron, Gelbach and
Miller 2011). If columns are nested in rows, it is V_rows. V is at least V_rows and V_columns, the
variances clustered one way. Of these two, V_few has fewer degrees of freedom (f) and V_many has
more (m). If V = V_many, there are m degrees of freedom. Otherwise there are 1/(s/f + (1 - s)/m)
with s = V_few/V. This is Satterthwaite's rule with shares instead of their squares: with three
columns, the original rule covers the true value in as few as 91 per cent of cases
(tests/stats/test_crossing.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

CellSums: TypeAlias = dict[tuple[str, str], tuple[float, float]]
"""(sum of influence values, weight) by (row, column), for one stratum."""
ZERO_ERROR_RATIO = 1e-9
"""A clustered error below this share of the error over questions counts as 0."""
SINGULAR_VALUE_RATIO = 1e-9
"""Singular values below this share of the largest one count as 0."""


class Observation(NamedTuple):
    """Terms and cluster membership of one query or one scored text segment."""

    cluster: str
    """Document, draw or book."""
    terms: tuple[Any, ...] = ()
    """The numbers that the figure sums; before `Figure.to_observations`, the values they are made
    from."""
    stratum: str = ""
    """Sub-task. Clusters of different strata differ by more than chance."""
    crossed: str = ""
    """Second source of variance, crossed with clusters: the question for draws, the draw for
    documents. Empty for synthetic worlds that share nothing."""
    question: str = ""
    """Identity of a question that may be asked several times; empty if every query is different."""


class VarianceEstimate(NamedTuple):
    """Standard error of a sum and its degrees of freedom."""

    stderr: float
    degrees_of_freedom: float
    units: int
    """Number of clusters, or of questions if every stratum has one cluster."""
    effective_units: float
    """Number of units that determine the error; with two-way clustering, degrees of freedom plus
    one."""
    is_independent: bool = False
    """True if every unit is one query and there is no second source of variance."""
    crossed: int = 0
    """Number of units of the second source of variance; 0 if there is none."""


def estimate_variance(
    observations: Sequence[Observation], influence_values: Sequence[float], weights: Sequence[float]
) -> VarianceEstimate | None:
    """Estimate the variance of the sum of influence values.

    An influence value is the contribution of one observation to the deviation of the figure.
    `weights` are those of the mean: tokens, or 1 per query. `None` for one cluster with one
    question.
    """
    cells: defaultdict[str, CellSums] = defaultdict(dict)
    for term, influence, weight in zip(observations, influence_values, weights, strict=True):
        stratum_cells = cells[term.stratum]
        key = (term.cluster, term.crossed)
        total_influence, total_weight = stratum_cells.get(key, (0.0, 0.0))
        stratum_cells[key] = total_influence + influence, total_weight + weight
    strata = _sums_by_name(
        observations,
        influence_values,
        [term.question or str(place) for place, term in enumerate(observations)],
    )
    clusters, crossed = (
        sum(len({key[side] for key in keys}) for keys in cells.values()) for side in (0, 1)
    )
    if len(strata) > 1 and all(len(questions) == 1 for questions in strata.values()):
        one = _one_way({"": [questions[0] for questions in strata.values()]}, len(influence_values))
        if one is None or clusters == len(strata):
            return one
        return one._replace(units=clusters, crossed=len(strata))
    is_nested = len(cells) < crossed < clusters  # documents in draws that share no document
    is_crossed = sum(map(len, cells.values())) > max(clusters, crossed)
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
    """Sum influence values by name, per stratum."""
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, influence, name in zip(observations, influence_values, names, strict=True):
        sums[one.stratum][name].append(influence)
    return {
        stratum: [math.fsum(values) for values in clusters.values()]
        for stratum, clusters in sums.items()
    }


def _one_way(strata: Mapping[str, list[float]], n: int) -> VarianceEstimate | None:
    """Clustered variance; `None` if every stratum has one cluster."""
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
        variance += squares
    return VarianceEstimate(
        math.sqrt(variance), units - len(strata), units, units, is_independent=units == n
    )


def two_way_variance(strata: Sequence[CellSums]) -> tuple[float, float]:
    """Compute (standard error of the sum of all influence values, degrees of freedom) of a crossed
    design."""
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
    """Variances of one stratum: two-way, by row, by column. Shape letters: R rows, C columns."""
    import numpy as np

    rows, columns = (
        np.unique([key[side] for key in cells], return_inverse=True)[1] for side in (0, 1)
    )
    influence_RC, weights_RC = np.zeros((2, max(rows) + 1, max(columns) + 1))
    influence_RC[rows, columns], weights_RC[rows, columns] = zip(*cells.values(), strict=True)
    # the only information on the variance if there is one row or one column
    squared_total = float(influence_RC.sum()) ** 2
    influence_RC -= influence_RC.sum() / weights_RC.sum() * weights_RC
    weights_RC /= weights_RC.sum()
    sums = influence_RC.sum(1), influence_RC.sum(0)
    squares = np.array(
        [float((influence_values**2).sum()) for influence_values in (*sums, influence_RC)]
    )
    clustered = [
        square * len(side) / (len(side) - 1) if len(side) > 1 else squared_total
        for square, side in zip(squares.tolist(), sums, strict=False)
    ]
    factors = np.linalg.lstsq(*_moments(weights_RC), rcond=SINGULAR_VALUE_RATIO)[0]
    return (
        float(factors @ squares) + (squared_total if 1 in map(len, sums) else 0.0),
        clustered[0],
        clustered[1],
    )


def _moments(weights_RC: Any) -> tuple[Any, Any]:
    """Expected sums of squares over rows, columns and cells, and the variance of the figure.

    Both are coefficients of the effect variances (rows, columns, cells), for influence values w_ij
    (mean_ij - figure).
    """
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


# --- sampling units: the `unit` of a task ----------------------------------------------------

SamplingUnit: TypeAlias = Literal[
    "query", "document", "group", "draw", "book", "conversation", "dialogue", "user", "context"
]
"""Unit whose sampling causes the variance: a query, or the source of similarity between queries.

    document      queries about one document are correlated
    group         documents read together into one state, and their queries, are correlated
    draw          queries of a sub-task follow the demonstrations of one draw; a run is one draw
    book          strides of one text are correlated
    conversation  queries about one conversation, and its turns, are correlated
    dialogue      turns of one dialogue are correlated
    user          queries of one user are correlated, also those with a longer profile
    context       queries about one context are correlated

Published questions and documents occur in several draws, so both vary. Groups of one draw share no
document, so their error is also that of documents. Another draw puts the same documents into other
groups, and both vary. Every seed of the synthetic world has its own questions and documents.
"""
RESAMPLED_SOURCES = ("mini", "generated")
"""Sources that produce new rows for every seed."""
EPISODE_UNITS: tuple[SamplingUnit, ...] = ("book", "conversation", "dialogue", "user", "context")
"""Units that are one episode each."""
UNIT_BY_READER: dict[str, SamplingUnit] = {
    "qa_stream": "document",
    "demonstrations": "draw",
    "metaicl": "draw",
    "book": "book",
    "sessions": "conversation",
}
"""Unit by dataset reader, for records of earlier versions, which lack it."""


def sampling_unit(task: Mapping[str, object]) -> SamplingUnit:
    """Return the sampling unit of a task as records describe it."""
    unit = task.get("unit") or UNIT_BY_READER.get(str(task.get("reader")), "query")
    assert unit in get_args(SamplingUnit), unit
    return unit  # type: ignore[return-value]


class Draw(NamedTuple):
    """One run of several that differ in their seed."""

    unit: SamplingUnit
    seed: int
    is_fresh: bool
    """True if every seed has its own rows. Published rows are the same, only their order or
    demonstrations differ."""


def observation_of_query(
    draw: Draw, episode: str, key: str, source_key: str = "", question: str = ""
) -> Observation:
    """Build the observation of a query from its episode, its key and the key of its document.

    `source_key` is "" if the document is not known. `question` is the same for equal questions with
    equal right answers; by default it is the key.
    """
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
