"""Variance of a sum of influence values, clustered in one or two ways.

    values = [Observation("doc1"), Observation("doc1"), Observation("doc2")]
    estimate_variance(values, influence_values, weights)            clustered over two documents

One way (`_one_way`): e_c is the sum of the influence values of cluster c, and stratum s has G_s
clusters. The variance is

    sum_s G_s/(G_s - 1) sum_c (e_c - mean_s e)^2

with sum_s (G_s - 1) degrees of freedom (Cochran 1977, sections 5A and 6.4; Liang and Zeger 1986).
Special cases:

- A stratum with a single cluster contributes e_c^2, the squared distance from the overall figure.
- If every stratum has one cluster, questions replace clusters. The variance is then too small,
  because the variance between clusters is unknown.
- If clusters agree by chance, so that the clustered error is 0, questions replace clusters, too.
- If every stratum has one question, all questions are treated as one stratum.

Two ways (`two_way_variance`): rows are clusters, columns are units of a second source of variance.
The mean of a cell is the sum of a row effect, a column effect and a cell effect, all independent.
Let A, B and C be the variances of these effects, and w the cell weights, which sum to 1. The figure
has the variance

    V = A sum_i w_i.^2 + B sum_j w_.j^2 + C sum_ij w_ij^2

The expected sums of squares of influence values over rows, columns and cells are linear in A, B and
C. So V is estimated without bias by the method of moments (Henderson 1953, method 1). For many rows
and columns, it is V_rows + V_columns - V_cells, the two-way clustered variance (Cameron, Gelbach
and Miller 2011). If columns are nested in rows, it is V_rows. The estimate is raised to V_rows or
V_columns, the variances clustered one way, if one of them is larger.

Degrees of freedom: of V_rows and V_columns, V_few has fewer (f) and V_many has more (m). If
V = V_many, there are m. Otherwise there are 1/(s/f + (1 - s)/m) with s = V_few/V. This is
Satterthwaite's rule with shares instead of squared shares. With three columns, intervals by the
original rule include the true value in as few as 91 per cent of cases
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
    """Numbers that the figure sums. Before `Figure.to_observations`, the values from which these
    numbers are computed."""
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

    Args:
        weights: weights of the observations in a mean: tokens, or 1 per query.

    Returns None for one cluster with one question.
    """
    cells_by_stratum: defaultdict[str, CellSums] = defaultdict(dict)
    for observation, influence, weight in zip(observations, influence_values, weights, strict=True):
        stratum_cells = cells_by_stratum[observation.stratum]
        key = (observation.cluster, observation.crossed)
        total_influence, total_weight = stratum_cells.get(key, (0.0, 0.0))
        stratum_cells[key] = total_influence + influence, total_weight + weight
    question_sums = _sums_by_name(
        observations,
        influence_values,
        [observation.question or str(place) for place, observation in enumerate(observations)],
    )
    n_clusters, n_crossed = (
        sum(len({key[side] for key in keys}) for keys in cells_by_stratum.values())
        for side in (0, 1)
    )
    if len(question_sums) > 1 and all(len(questions) == 1 for questions in question_sums.values()):
        by_stratum = _one_way(
            {"": [questions[0] for questions in question_sums.values()]}, len(influence_values)
        )
        if by_stratum is None or n_clusters == len(question_sums):
            return by_stratum
        return by_stratum._replace(units=n_clusters, crossed=len(question_sums))
    # example of nesting: documents in draws that share no document
    is_nested = len(cells_by_stratum) < n_crossed < n_clusters
    is_crossed = sum(map(len, cells_by_stratum.values())) > max(n_clusters, n_crossed)
    if is_nested or is_crossed:
        stderr, degrees_of_freedom = two_way_variance(list(cells_by_stratum.values()))
        return VarianceEstimate(
            stderr, degrees_of_freedom, n_clusters, degrees_of_freedom + 1, crossed=n_crossed
        )
    by_question = _one_way(question_sums, len(influence_values))
    by_cluster = _one_way(
        _sums_by_name(
            observations, influence_values, [observation.cluster for observation in observations]
        ),
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
    """Return the sums of the influence values with equal names, by stratum."""
    values_by_stratum: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for observation, influence, name in zip(observations, influence_values, names, strict=True):
        values_by_stratum[observation.stratum][name].append(influence)
    return {
        stratum: [math.fsum(values) for values in clusters.values()]
        for stratum, clusters in values_by_stratum.items()
    }


def _one_way(
    sums_by_stratum: Mapping[str, list[float]], n_observations: int
) -> VarianceEstimate | None:
    """Estimate the one-way clustered variance; None if every stratum has one cluster.

    Args:
        sums_by_stratum: sums of the influence values of the clusters.
    """
    units = sum(map(len, sums_by_stratum.values()))
    if units == len(sums_by_stratum):
        return None
    variance = 0.0
    for values in sums_by_stratum.values():
        mean, count = math.fsum(values) / len(values), len(values)
        contribution = (
            count / (count - 1) * math.fsum((value - mean) ** 2 for value in values)
            if count > 1
            else mean**2
        )
        variance += contribution
    return VarianceEstimate(
        math.sqrt(variance),
        units - len(sums_by_stratum),
        units,
        units,
        is_independent=units == n_observations,
    )


def two_way_variance(strata: Sequence[CellSums]) -> tuple[float, float]:
    """Estimate (standard error, degrees of freedom) of the sum of all influence values.

    Clusters are crossed with a second source of variance, see the module docstring.
    """
    degrees_by_side = [
        sum(len({key[side] for key in cells}) - 1 for cells in strata) for side in (0, 1)
    ]
    two_way, rows, columns = (
        math.fsum(parts) for parts in zip(*map(_variances, strata), strict=True)
    )
    (few_variance, few_degrees), (many_variance, many_degrees) = sorted(
        zip((rows, columns), degrees_by_side, strict=True), key=lambda side: side[1]
    )
    variance = max(two_way, few_variance, many_variance)
    if variance == many_variance:
        return math.sqrt(variance), many_degrees
    share = few_variance / variance
    return math.sqrt(variance), 1 / (share / few_degrees + (1 - share) / many_degrees)


def _variances(cells: CellSums) -> tuple[float, float, float]:
    """Estimate (two-way variance, variance by row, variance by column) of one stratum.

    Shape letters: R rows, C columns.
    """
    import numpy as np

    rows, columns = (
        np.unique([key[side] for key in cells], return_inverse=True)[1] for side in (0, 1)
    )
    influence_RC, weights_RC = np.zeros((2, max(rows) + 1, max(columns) + 1))
    influence_RC[rows, columns], weights_RC[rows, columns] = zip(*cells.values(), strict=True)
    # one row or one column: its distance from the overall figure stands for its variance
    squared_total = float(influence_RC.sum()) ** 2
    influence_RC -= influence_RC.sum() / weights_RC.sum() * weights_RC
    weights_RC /= weights_RC.sum()
    margins = influence_RC.sum(1), influence_RC.sum(0)
    squares = np.array(
        [float((influence_values**2).sum()) for influence_values in (*margins, influence_RC)]
    )
    clustered = [
        square * len(side) / (len(side) - 1) if len(side) > 1 else squared_total
        for square, side in zip(squares.tolist(), margins, strict=False)
    ]
    coefficients = np.linalg.lstsq(*_moments(weights_RC), rcond=SINGULAR_VALUE_RATIO)[0]
    return (
        float(coefficients @ squares) + (squared_total if 1 in map(len, margins) else 0.0),
        clustered[0],
        clustered[1],
    )


def _moments(weights_RC: Any) -> tuple[Any, Any]:
    """Return the equations of the method of moments: (expected sums of squares, variance V).

    Rows of the first array, which is symmetric: sums of squares over rows, columns and cells. Its
    columns, and the second array, are the coefficients of A, B and C. Influence values are
    w_ij (mean_ij - figure).
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
    rows_with_columns = (squared - 2 * weights_RC * rows * columns).sum()
    rows_with_cells, columns_with_cells = (
        (squared * (1 - 2 * weights)).sum() for weights in (rows, columns)
    )
    moments = [
        [(rows**2 * (1 - 2 * rows)).sum(), rows_with_columns, rows_with_cells],
        [rows_with_columns, (columns**2 * (1 - 2 * columns)).sum(), columns_with_cells],
        [rows_with_cells, columns_with_cells, (squared * (1 - 2 * weights_RC)).sum()],
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

Published questions and documents occur in several draws, so draws are crossed with questions or
documents. Groups of one draw share no document, so their error includes that of documents. Another
draw puts the same documents into other groups, so groups are crossed with documents. Every seed of
the synthetic world has its own questions and documents.
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
"""Sampling unit by dataset reader, for records of earlier versions, which store no unit."""


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
    """True if every seed has its own data rows. Published rows are the same for all seeds, which
    change only the order or the demonstrations."""


def observation_of_query(
    draw: Draw, episode: str, key: str, source_key: str = "", question: str = ""
) -> Observation:
    """Build the observation of a query from its episode, its key and the key of its document.

    Args:
        source_key: key of the document; "" if it is not known.
        question: identity of the question, the same for equal questions with equal right answers;
            the key by default.
    """
    seed, world_prefix = str(draw.seed), f"{draw.seed} {episode} " if draw.is_fresh else ""
    question_id = world_prefix + (question or key)
    if draw.unit == "draw":
        return Observation(seed, crossed=question_id, question=question_id)
    if draw.unit == "group":
        return Observation(
            episode, crossed=world_prefix + (source_key or key), question=question_id
        )
    cluster = (
        episode if draw.unit in EPISODE_UNITS else (draw.unit == "document" and source_key) or key
    )
    return Observation(
        world_prefix + cluster, crossed="" if draw.is_fresh else seed, question=question_id
    )
