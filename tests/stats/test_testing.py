"""Tests of differences: exact p, Holm's correction, what could have been found, the mean over tasks; and error rates by
simulation."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from ttabench.stats.estimate import (
    LEVEL,
    MCNEMAR,
    POWER,
    SIGN,
    STRATIFIED,
    STUDENT,
    Apart,
    detectable,
    difference,
    holm,
    mcnemar,
    needed,
    single,
    stratified,
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
    assert holm([0.01, 0.04, 0.03], family=10) == pytest.approx([0.1, 0.32, 0.27]), "chosen among ten"


def test_which_test_p_is_of() -> None:
    """Single queries have the exact test, queries in clusters Student's over these."""
    values = [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 0.0)]
    sides = [[single(str(place), pair[side]) for place, pair in enumerate(values)] for side in (0, 1)]
    alone = difference(*sides)
    assert (alone.test, alone.p, alone.freedom) == (MCNEMAR, mcnemar(3, 1), None)
    clusters = [[each._replace(cluster=str(place // 2)) for place, each in enumerate(side)] for side in sides]
    together = difference(*clusters)
    assert (together.test, together.freedom, together.units) == (STUDENT, 2, 3)


def test_the_detectable_difference_is_found_as_often_as_it_says() -> None:
    draw = random.Random(0)
    n, stderr = 40, 1 / math.sqrt(40)
    size, found = detectable(stderr, n - 1), 0
    for _ in range(400):
        gains = [draw.gauss(size, 1.0) for _ in range(n)]
        told = difference(
            [single(str(i), gain) for i, gain in enumerate(gains)], [single(str(i), 0.0) for i in range(n)]
        )
        found += told.p < LEVEL
    assert found / 400 == pytest.approx(POWER, abs=0.06)


def test_false_alarms_of_a_whole_table_are_rare() -> None:
    """Six methods that answer alike, all fifteen pairs: at most one table in twenty has any difference after Holm."""
    draw = random.Random(1)
    tables, alarms, plain = 300, 0, 0
    for _ in range(tables):
        hard = [draw.random() for _ in range(60)]
        methods = [[float(draw.random() < each) for each in hard] for _ in range(6)]
        found = [
            mcnemar(
                sum(a > b for a, b in zip(one, other, strict=True)), sum(a < b for a, b in zip(one, other, strict=True))
            )
            for place, one in enumerate(methods)
            for other in methods[place + 1 :]
        ]
        alarms += any(p is not None and p < LEVEL for p in holm(found))
        plain += any(p < LEVEL for p in found)
    assert alarms <= LEVEL * tables
    assert plain > 2 * LEVEL * tables, "without the correction they are not"


def test_units_that_all_differ_alike_have_a_sign_test() -> None:
    """Four documents, one answered under each method: p is that of four coins; eight settle it, four do not."""
    for units, p in ((4, 0.125), (8, 2**-7)):
        left = [single(f"doc{place // 2}", 1.0) for place in range(2 * units)]
        found = difference(left, [each._replace(terms=(0.0, 1.0)) for each in left])
        assert (found.test, found.p, found.ci_low, found.units) == (SIGN, p, None, units)
        same = difference(left, left)
        assert (same.p, same.test) == (1.0, "")


def of(task: str, value: float, stderr: float, freedom: int | None, units: int) -> tuple[str, Apart]:
    return task, Apart(value=value, stderr=stderr, freedom=freedom, units=units)


def part(task: str, draws: list[float]) -> tuple[str, Apart]:
    """A task of which each draw has this difference."""
    return of(task, fmean(draws), stdev(draws) / math.sqrt(len(draws)), len(draws) - 1, len(draws))


def test_strata_add_up() -> None:
    parts = [part("one", [0.1, 0.2, 0.3]), part("two", [0.5, 0.5, 0.8])]
    found = stratified(parts)
    assert found.value == pytest.approx(0.4)
    assert found.stderr == pytest.approx(math.hypot(*(one.stderr for _, one in parts)) / 2)
    assert 2 < found.freedom < 4, "Satterthwaite's lies between one task's and their sum"
    assert (found.units, found.test) == (6, STRATIFIED)


def test_parts_of_one_task_err_together() -> None:
    apart = stratified([part("one", [0.1, 0.2, 0.3]), part("two", [0.1, 0.2, 0.3])])
    alike = stratified([part("one", [0.1, 0.2, 0.3])] * 2)
    assert alike.stderr == pytest.approx(math.sqrt(2) * (apart.stderr or 0.0))
    assert alike.stderr == pytest.approx(part("one", [0.1, 0.2, 0.3])[1].stderr)
    assert alike.freedom == pytest.approx(2)


def test_no_error_shows_no_interval_and_shares_stay_within_one() -> None:
    found = stratified([of("one", 1.0, 0.0, None, 3), of("two", 1.0, 0.0, None, 3)])
    assert (found.value, found.ci_low, found.p) == (1.0, None, None)
    wide = stratified([of("one", 0.9, 0.2, 2, 3)], most=1.0)
    assert wide.ci_high == 1.0
    normal = stratified([of("one", 0.2, 0.1, None, 30)])
    assert normal.p == pytest.approx(0.0455, abs=1e-4)


@pytest.mark.parametrize(("true", "least", "most"), [(0.0, 0.02, 0.07), (0.48, 0.99, 1.0)])
def test_three_draws_of_six_tasks(true: float, least: float, most: float) -> None:
    """Draws of a task lie 0.15 apart: equal methods are told apart in one of twenty, those 0.48 apart nearly always."""
    draw, trials = random.Random(7), 800
    alarms = 0
    for _ in range(trials):
        parts = [part(str(task), [draw.gauss(true, 0.15) for _ in range(3)]) for task in range(6)]
        p = stratified(parts).p
        alarms += p is not None and p < LEVEL
    assert least <= alarms / trials <= most


def test_so_many_units_would_find_it() -> None:
    for value, stderr, freedom, units in ((0.03, 0.02, None, 32), (0.2, 0.15, 2, 3), (0.1, 0.08, 14, 15)):
        more = needed(value, stderr, freedom, units)
        assert more is not None
        for count, found in ((more, True), (0.9 * more, False)):
            times = count / units
            least = detectable(stderr / math.sqrt(times), None if freedom is None else freedom * times)
            assert (least <= value) == found
    strict, plain = needed(0.03, 0.02, None, 32, level=LEVEL / 10), needed(0.03, 0.02, None, 32)
    assert plain is not None
    assert strict > 1.5 * plain, "one of ten tests needs more"
    assert needed(0.03, 0.02, None, 32, fixed=0.9) is None, "more of them alone would not do"
    assert needed(1e-6, 0.1, 2, 3) is None, "nobody asks so many"
