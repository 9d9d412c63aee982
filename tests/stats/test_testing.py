"""Tests of differences: exact p, Holm's correction, the mean over tasks; and error rates by
simulation."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import (
    MCNEMAR,
    SIGN,
    SIGNIFICANCE_LEVEL,
    STRATIFIED,
    STUDENT,
    PairedDifference,
    difference,
    holm,
    mcnemar,
    stratified_mean,
)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (5, 5), (12, 3), (0, 20), (150, 113)])
def test_mcnemar_is_a_fair_coin_for_every_change(won: int, lost: int) -> None:
    tail = sum(math.comb(won + lost, k) for k in range(min(won, lost) + 1)) / 2 ** (won + lost)
    assert mcnemar(won, lost) == mcnemar(lost, won) == pytest.approx(min(1.0, 2 * tail))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04], "what was not tested does not count"
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03], family=10) == pytest.approx([0.1, 0.32, 0.27]), (
        "chosen among ten"
    )


def test_which_test_p_is_of() -> None:
    """Single queries have the exact test, queries in clusters Student's over these."""
    values = [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 0.0)]
    sides = [
        [Observation(str(place), (pair[side], 1.0)) for place, pair in enumerate(values)]
        for side in (0, 1)
    ]
    alone = difference(*sides)
    assert (alone.test, alone.p, alone.degrees_of_freedom) == (MCNEMAR, mcnemar(3, 1), None)
    clusters = [
        [each._replace(cluster=str(place // 2)) for place, each in enumerate(side)]
        for side in sides
    ]
    together = difference(*clusters)
    assert (together.test, together.degrees_of_freedom, together.units) == (STUDENT, 2, 3)


def test_false_alarms_of_a_whole_table_are_rare() -> None:
    """Six methods that answer alike, all fifteen pairs: at most one table in twenty has any difference after Holm."""
    draw = random.Random(1)
    tables, alarms, plain = 300, 0, 0
    for _ in range(tables):
        hard = [draw.random() for _ in range(60)]
        methods = [[float(draw.random() < each) for each in hard] for _ in range(6)]
        found = [
            mcnemar(
                sum(a > b for a, b in zip(one, other, strict=True)),
                sum(a < b for a, b in zip(one, other, strict=True)),
            )
            for place, one in enumerate(methods)
            for other in methods[place + 1 :]
        ]
        alarms += any(p is not None and p < SIGNIFICANCE_LEVEL for p in holm(found))
        plain += any(p < SIGNIFICANCE_LEVEL for p in found)
    assert alarms <= SIGNIFICANCE_LEVEL * tables
    assert plain > 2 * SIGNIFICANCE_LEVEL * tables, "without the correction they are not"


def test_units_that_all_differ_alike_have_a_sign_test() -> None:
    """Four documents, one answered under each method: p is that of four coins; eight settle it, four do not."""
    for units, p in ((4, 0.125), (8, 2**-7)):
        left = [Observation(f"doc{place // 2}", (1.0, 1.0)) for place in range(2 * units)]
        found = difference(left, [each._replace(terms=(0.0, 1.0)) for each in left])
        assert (found.test, found.p, found.ci_low, found.units) == (SIGN, p, None, units)
        same = difference(left, left)
        assert (same.p, same.test) == (1.0, "")


def of(
    task: str, value: float, stderr: float, degrees_of_freedom: int | None, units: int
) -> tuple[str, PairedDifference]:
    return task, PairedDifference(
        value=value, stderr=stderr, degrees_of_freedom=degrees_of_freedom, units=units
    )


def part(task: str, draws: list[float]) -> tuple[str, PairedDifference]:
    """A task of which each draw has this difference."""
    return of(task, fmean(draws), stdev(draws) / math.sqrt(len(draws)), len(draws) - 1, len(draws))


def test_strata_add_up() -> None:
    parts = [part("one", [0.1, 0.2, 0.3]), part("two", [0.5, 0.5, 0.8])]
    found = stratified_mean(parts)
    assert found.value == pytest.approx(0.4)
    assert found.stderr == pytest.approx(math.hypot(*(one.stderr for _, one in parts)) / 2)
    assert 2 < found.degrees_of_freedom < 4, "Satterthwaite's lies between one task's and their sum"
    assert (found.units, found.test) == (6, STRATIFIED)


def test_parts_of_one_task_err_together() -> None:
    apart = stratified_mean([part("one", [0.1, 0.2, 0.3]), part("two", [0.1, 0.2, 0.3])])
    alike = stratified_mean([part("one", [0.1, 0.2, 0.3])] * 2)
    assert alike.stderr == pytest.approx(math.sqrt(2) * (apart.stderr or 0.0))
    assert alike.stderr == pytest.approx(part("one", [0.1, 0.2, 0.3])[1].stderr)
    assert alike.degrees_of_freedom == pytest.approx(2)
