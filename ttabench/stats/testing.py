"""Tests of differences: exact McNemar, Holm's correction for several of them, and what a comparison could have found.

mcnemar(12, 3)                      0.0352: of 15 queries that changed, 12 changed for the better
holm([0.01, 0.04, None])            [0.02, 0.04, None]
detectable(0.02, None)              0.056: a true difference of 5.6 points is found 80 times in 100
needed(0.03, 0.02, None, 32)        112: of as many questions a difference of 3 points is found 80 times in 100
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.05
"""Below it a difference is called beyond chance."""
POWER = 0.8
MOST = 1024
"""So many times the units are not in reach."""


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of paired right and wrong answers (McNemar 1947): a fair coin for every query that changed."""
    from scipy.special import bdtr

    changed = won + lost
    return min(1.0, 2 * float(bdtr(min(won, lost), changed, 0.5))) if changed else 1.0


def unanimous(units: int) -> float:
    """Two-sided p of a sign test where all units differ in the same direction: as many coins fall alike."""
    return min(1.0, 2.0 ** (1 - units))


def holm(p_values: Sequence[float | None], family: int = 0) -> list[float | None]:
    """p values adjusted so that one false alarm among all of them is as rare as each alone (Holm 1979). None is the p
    of a test that was not made, which does not count. Of a `family` of more tests, among which those were chosen by
    what was found, the others count as if they had the largest p: never too small whatever the choice."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest, family = 0.0, max(family, len(order))
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[place] = largest
    return adjusted


def detectable(stderr: float, freedom: float | None, level: float = LEVEL) -> float:
    """The smallest true difference that a two-sided test finds four times in five, by the standard error of the paired
    difference; None for degrees of freedom of Student's t takes the normal distribution."""
    from scipy.special import ndtri, stdtrit

    ends = (1 - level / 2, POWER)
    return stderr * float(sum(ndtri(end) if freedom is None else stdtrit(freedom, end) for end in ends))


def needed(
    value: float, stderr: float, freedom: float | None, units: int, *, level: float = LEVEL, fixed: float = 0.0
) -> int | None:
    """How many units would let a true difference of this size be found four times in five; None beyond `MOST` times.

    The variance falls with the units (documents, draws or questions), and the degrees of freedom grow with them; a
    `fixed` share of the variance stays, for other things vary, too. The level is 5 % over the size of the family.
    """

    def found(times: float) -> bool:
        more = None if freedom is None else freedom * times
        return detectable(stderr * math.sqrt((1 - fixed) / times + fixed), more, level) <= abs(value)

    low, high = 0.0, 1.0
    while not found(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 0.001 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return math.ceil(units * high)
