"""Errors where two things vary that are crossed: the same questions asked under several draws of demonstrations.

    two_way([{("draw 0", "q1"): (0.2, 0.25), ("draw 0", "q2"): ..., ("draw 1", "q1"): ..., ...}])   TwoWay(error, ...)

The model: a cell's mean is an effect of its row, one of its column and one of its own, all independent. Of cells with
weights w (summing to 1) the figure then varies by V = A sum_i w_i.^2 + B sum_j w_.j^2 + C sum_ij w_ij^2, with A, B, C
the variances of the effects. The pulls give three sums of squares, over rows, columns and cells; what each is expected
to be is linear in A, B and C, and so V is estimated without bias from the three (the method of moments: Henderson
1953, method 1). Of complete designs with equal weights that is (MS_rows + MS_columns - MS_cells) / n of the analysis
of variance; of many rows and columns it is V_rows + V_columns - V_cells, the two-way clustered variance (Cameron,
Gelbach and Miller 2011), which with three columns takes a third of what rows vary by away: pulls are measured from a
mean that these columns made. Where columns are nested in rows, it is V_rows.

V is at least V_rows and V_columns, the variances clustered one way: an effect has no negative variance. Of these let
V_few have the fewer degrees of freedom, f, and V_many more, m. Where V = V_many there are m degrees of freedom, else
1/(s/f + (1 - s)/m) with s = V_few/V: Satterthwaite's, but with shares in place of their squares, for with three
columns that rule holds the truth in as few as 91 per cent. See the simulation in tests/stats/test_crossing.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

Cells: TypeAlias = dict[tuple[str, str], tuple[float, float]]
"""(sum of pulls, weight) by row and column, of one stratum."""
SINGULAR = 1e-9
"""Below this share of the largest, a singular value is 0."""


def crossed(strata: Sequence[Cells]) -> bool:
    """Whether rows stand in several columns and columns in several rows; else one of them holds the other."""
    rows, columns = (sum(len({key[side] for key in cells}) for cells in strata) for side in (0, 1))
    return sum(map(len, strata)) > max(rows, columns)


class TwoWay(NamedTuple):
    """How far the sum of all pulls varies."""

    error: float
    """Standard error."""
    freedom: float
    """Degrees of freedom."""
    shares: tuple[float, float]
    """How much of the variance each side shows, clustered by itself: rows, columns; 1 at most."""


def two_way(strata: Sequence[Cells]) -> TwoWay:
    """Of a crossed design."""
    freedoms = [sum(len({key[side] for key in cells}) - 1 for cells in strata) for side in (0, 1)]
    both, rows, columns = (math.fsum(parts) for parts in zip(*map(_variances, strata), strict=True))
    (few, least), (many, most) = sorted(zip((rows, columns), freedoms, strict=True), key=lambda side: side[1])
    variance = max(both, few, many)
    shares = (rows / variance, columns / variance) if variance else (1.0, 0.0)
    if variance == many:
        return TwoWay(math.sqrt(variance), most, shares)
    share = few / variance
    return TwoWay(math.sqrt(variance), 1 / (share / least + (1 - share) / most), shares)


def _variances(cells: Cells) -> tuple[float, float, float]:
    """Of one stratum: of both ways, and clustered by row and by column."""
    import numpy as np

    far = math.fsum(pull for pull, _ in cells.values()) ** 2  # from the whole figure: all that one row or column tells
    whole = math.fsum(weight for _, weight in cells.values())
    away = math.fsum(pull for pull, _ in cells.values()) / whole
    pulls = {key: pull - away * weight for key, (pull, weight) in cells.items()}
    weights = {key: weight / whole for key, (_, weight) in cells.items()}
    sums = [list(_by(pulls, side).values()) for side in (0, 1)]
    squares = [math.fsum(value**2 for value in sums_of) for sums_of in [*sums, list(pulls.values())]]
    moments, wanted = _moments(weights)
    factors = np.linalg.lstsq(np.array(moments).T, np.array(wanted), rcond=SINGULAR)[0]
    rows, columns = (
        square * len(sums_of) / (len(sums_of) - 1) if len(sums_of) > 1 else far
        for square, sums_of in zip(squares[:2], sums, strict=True)
    )
    return float(factors @ squares) + (far if 1 in map(len, sums) else 0.0), rows, columns


def _by(values: Mapping[tuple[str, str], float], side: int) -> dict[str, float]:
    """Sums by row (side 0) or by column (1)."""
    sums: defaultdict[str, float] = defaultdict(float)
    for key, value in values.items():
        sums[key[side]] += value
    return sums


def _moments(weights: Mapping[tuple[str, str], float]) -> tuple[list[list[float]], list[float]]:
    """What sums of squares over rows, columns and cells are expected to be, and the variance of the figure: how much of
    each variance of an effect (of rows, columns, cells) they hold, where pulls are w_ij (mean_ij - figure)."""
    totals = [_by(weights, side) for side in (0, 1)]
    inside = [_by({key: weight**2 for key, weight in weights.items()}, side) for side in (0, 1)]
    wanted = [
        math.fsum(weight**2 for weight in weights_of)
        for weights_of in [*(t.values() for t in totals), weights.values()]
    ]
    cells = wanted[2]
    cross = math.fsum(w * (w - 2 * totals[0][row] * totals[1][column]) for (row, column), w in weights.items())

    def own(values: Mapping[str, float], total: Mapping[str, float], whole: float) -> float:
        """The sum of a row's squares, less what the figure has of the row itself."""
        return math.fsum(value * (1 - 2 * total[name]) for name, value in values.items()) + whole

    squared = [{name: weight**2 for name, weight in weights_of.items()} for weights_of in totals]
    both = cross + wanted[0] * wanted[1]
    moments = [[own(squared[side], totals[side], wanted[side] ** 2), both] for side in (0, 1)]
    of_cells = [own(inside[side], totals[side], cells * wanted[side]) for side in (0, 1)]
    alone = math.fsum(w**2 * (1 - 2 * w) for w in weights.values()) + cells**2
    return [[*moments[0], of_cells[0]], [*reversed(moments[1]), of_cells[1]], [*of_cells, alone]], wanted
