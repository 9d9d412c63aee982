"""The mean of a paired difference over tasks: every task is a stratum, with its own difference, error and freedom.

    stratified([Part("boolq", 0.48, 0.06, 2), Part("cb", 0.40, 0.09, 2)])      0.44 with its interval and p

With d_b the difference on part b of B parts, the mean is sum_b d_b / B. Tasks are independent strata (Cochran 1977,
section 5.4), so its variance is the sum over tasks of (sum_{b of the task} s_b / B)^2: parts of one task (lengths,
shots) may ask the same questions, and are taken to err together, which is never too small. Degrees of freedom are those
of Satterthwaite (1946) from the tasks' own. It speaks of these tasks: no other task is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ttabench.stats.estimate import STUDENT, Apart, student

STRATIFIED = f"{STUDENT} over tasks"
"""The test that p is of."""


class Part(NamedTuple):
    """A difference that goes into the mean."""

    stratum: str
    """The task."""
    value: float
    stderr: float
    """0 where all that varies agrees."""
    freedom: float | None
    """Degrees of freedom of its error; None for a normal one."""
    units: int = 0
    """The unit that varies in it."""
    across: int = 0
    """How many of what else varies; see `clusters.Spread`."""
    shares: tuple[float, float] = (1.0, 0.0)
    """How much of the variance each of the two shows by itself."""


def stratified(parts: Sequence[Part], most: float = math.inf) -> Apart:
    """The mean of at least one difference; no interval and no p where none of them shows an error.

    Args:
        parts: differences, each with its error.
        most: the farthest that two figures can lie apart; the interval stays within.
    """
    value, units = math.fsum(part.value for part in parts) / len(parts), sum(part.units for part in parts)
    strata: dict[str, list[Part]] = {}
    for part in parts:
        strata.setdefault(part.stratum, []).append(part)
    variances = [((math.fsum(part.stderr for part in own) / len(parts)) ** 2, own) for own in strata.values()]
    variance = math.fsum(each for each, _ in variances)
    if variance <= 0:
        return Apart(value=value, units=units)
    error, freedom = math.sqrt(variance), _freedom(variance, variances)
    low, high = (max(-most, min(most, value + sign * student(freedom) * error)) for sign in (-1, 1))
    first, second = (
        math.fsum(each * math.fsum(part.shares[side] for part in own) / len(own) for each, own in variances) / variance
        for side in (0, 1)
    )
    return Apart(value=value, units=units, ci_low=low, ci_high=high, p=_two_sided(value / error, freedom), stderr=error,
                 freedom=freedom, test=STRATIFIED, across=sum(part.across for part in parts),
                 shares=(first, second))  # fmt: skip


def _freedom(variance: float, variances: Sequence[tuple[float, Sequence[Part]]]) -> float:
    """Satterthwaite's; infinite where all errors are normal."""
    with_freedom = [(each, min(part.freedom for part in own if part.freedom is not None))
            for each, own in variances if each > 0 and any(part.freedom is not None for part in own)]  # fmt: skip
    return variance**2 / math.fsum(each**2 / freedom for each, freedom in with_freedom) if with_freedom else math.inf


def _two_sided(t: float, freedom: float) -> float:
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(t)))
