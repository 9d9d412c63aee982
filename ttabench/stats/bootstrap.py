"""Paired bootstraps: draw what both sides answered with replacement, and see how far the difference of figures moves.

Efron and Tibshirani 1993, chapter 13; Koehn 2004. The interval is that of the 2.5 % and 97.5 % quantiles, p is
two-sided. Plain means draw queries; ratios of sums (perplexities) draw the groups of `aggregation.groups`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 10_000
DRAWS_AT_ONCE = 4_000_000
"""Resampled values held in memory at a time."""


def paired_bootstrap(differences: Floats, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """(low, high, p) of the mean of paired differences [N]: the 95 % interval and the two-sided p against zero."""
    return _resampled(len(differences), lambda drawn_RN: differences[drawn_RN].mean(axis=1), resamples, seed)


def paired_ratios(
    left_G2: Floats, right_G2: Floats, *, exponential: bool, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """The same of the difference of two ratios of sums (of their exponentials).

    Few groups that agree would show any p: it is not under 2^(1 - G), the least that an exact test by signs could show.

    Args:
        left_G2: numerator and denominator of every group.
        right_G2: of the same groups in the same order.
        exponential: the figures are the exponentials of the ratios.
        resamples: draws.
        seed: of the draws.
    """
    assert left_G2.shape == right_G2.shape, f"groups {left_G2.shape} and {right_G2.shape} are no pairs"

    def figures(side_G2: Floats, drawn_RG: NDArray[np.int32]) -> Floats:
        sums_R2 = side_G2[drawn_RG].sum(axis=1)
        ratio_R: Floats = sums_R2[:, 0] / sums_R2[:, 1]
        return np.exp(ratio_R) if exponential else ratio_R

    def apart(drawn_RG: NDArray[np.int32]) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found_R = figures(left_G2, drawn_RG) - figures(right_G2, drawn_RG)
        return found_R[np.isfinite(found_R)]  # a draw may hold only groups without a word

    low, high, p = _resampled(len(left_G2), apart, resamples, seed)
    return low, high, max(p, 2.0 ** (1 - len(left_G2)))


def _resampled(
    count: int, statistic: Callable[[NDArray[np.int32]], Floats], resamples: int, seed: int
) -> tuple[float, float, float]:
    assert count > 0
    assert resamples > 0
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // count)
    values_R = np.concatenate(
        [
            statistic(generator.integers(0, count, size=(min(at_once, resamples - start), count), dtype=np.int32))
            for start in range(0, resamples, at_once)
        ]
    )
    low, high = np.quantile(values_R, [0.025, 0.975])
    tail = min(int((values_R <= 0).sum()), int((values_R >= 0).sum()))
    # one is added above and below: a bootstrap of R draws cannot show a p under 1 / (R + 1)
    return float(low), float(high), min(1.0, 2 * (tail + 1) / (len(values_R) + 1))
