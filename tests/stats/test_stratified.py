"""The mean of a difference over tasks: false alarms as rare as they should be, large differences found."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest

from ttabench.stats.estimate import LEVEL, STRATIFIED, Apart, detectable, needed, stratified


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
