"""Tests of differences: exact McNemar, Holm's correction for several of them, and what a comparison could have found.

mcnemar(12, 3)                      0.0352: of 15 queries that changed, 12 changed for the better
holm([0.01, 0.04, None])            [0.02, 0.04, None]
detectable(0.02, None)              0.056: a true difference of 5.6 points is found 80 times in 100
"""

from __future__ import annotations

from collections.abc import Sequence

LEVEL = 0.05
"""Below it a difference is called beyond chance."""
POWER = 0.8


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p of paired right and wrong answers (McNemar 1947): a fair coin for every query that changed."""
    from scipy.special import bdtr

    changed = won + lost
    return min(1.0, 2 * float(bdtr(min(won, lost), changed, 0.5))) if changed else 1.0


def holm(found: Sequence[float | None], family: int = 0) -> list[float | None]:
    """p values adjusted so that one false alarm among all of them is as rare as each alone (Holm 1979).

    Args:
        found: p of each test; None where none was made, which does not count.
        family: how many tests there are, where those given were chosen among them by what was found: the others count
            as if they had the largest p, which is never too small whatever the choice.
    """
    order = sorted((p, place) for place, p in enumerate(found) if p is not None)
    adjusted: list[float | None] = [None] * len(found)
    largest, family = 0.0, max(family, len(order))
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[place] = largest
    return adjusted


def detectable(stderr: float, freedom: int | None) -> float:
    """The smallest true difference that a test at 5 % finds four times in five, by its standard error.

    Args:
        stderr: of the paired difference.
        freedom: degrees of freedom of Student's t; None takes the normal distribution.
    """
    from scipy.special import ndtri, stdtrit

    two_sided, power = 1 - LEVEL / 2, POWER
    if freedom is None:
        return stderr * float(ndtri(two_sided) + ndtri(power))
    return stderr * float(stdtrit(freedom, two_sided) + stdtrit(freedom, power))
