"""Which pairs of a block are compared, their differences, and why others cannot be paired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ttabench.report.blocks import Group
from ttabench.report.entries import Entry, ceiling_of, floor_of, higher_is_better
from ttabench.report.figures import scale
from ttabench.report.headline import Rivals, leading
from ttabench.report.pairing import Values, kind_of
from ttabench.stats.aggregation import Unit, paired_difference
from ttabench.stats.estimate import Observed
from ttabench.stats.testing import LEVEL, detectable

FEW = 4
"""Entries of a block of which every pair is shown."""
Side = tuple[Entry, Values]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`left` minus `right` on the queries both answered, with a 95 % interval (None where a single one shows none)."""

    left: str
    right: str
    task: str
    block: str
    metric: str
    value: float
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None = None
    """The same, adjusted for all pairs of the comparison, shown or not."""
    n: int
    """Queries."""
    units: int
    """What varies among them: documents, draws of a sub-task, books; see `stats.estimate`."""
    test: str = ""
    """What p is of, see `stats.estimate.TESTS`; empty where there is none."""
    detectable: float | None = None
    """The smallest true difference that such a test finds four times in five."""
    better: int | None = None
    """Queries on which left is better; of right and wrong answers, those that became right."""
    worse: int | None = None

    @property
    def beyond_chance(self) -> bool:
        """Whether it stays below 5 % once it is adjusted for all pairs."""
        return self.p_holm is not None and self.p_holm < LEVEL

    @property
    def gain(self) -> float:
        """The value, so that more is better for left."""
        return self.value if higher_is_better(self.metric) else -self.value


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """Two entries of a block without a difference, and why."""

    block: str
    left: str
    right: str
    reason: str


def chosen(entries: Sequence[Entry], rivals: Rivals | None, *, every: bool) -> list[tuple[int, int]]:
    """Places of the pairs that are shown, left and right: all of at most four entries, or of any number if `every`.

    Of more: each against the ceiling (the floor where there is none), the best against each, and those that the first
    line is about against each other and the floor. The floor stands right, then the ceiling; the best of many stands
    left; else the order is that given.
    """
    place = {id(entry): index for index, entry in enumerate(entries)}
    ends = [place[id(end)] for end in (floor_of(entries), ceiling_of(entries)) if end is not None]
    if every or len(entries) <= FEW:
        best: list[int] = []
        found = list(combinations(range(len(entries)), 2))
    else:
        named = [index for index, entry in enumerate(entries) if rivals and entry.label in rivals.labels]
        best = sorted(place[id(entry)] for entry in leading(entries))
        best = [index for index in named if index in best][:1] or best[:1]
        anchors = [*ends[-1:], *best] or [0]
        found = [(anchor, other) for anchor in anchors for other in range(len(entries)) if other != anchor]
        found += combinations(sorted({*named, *ends}), 2)

    def rank(index: int) -> tuple[int, int]:
        return (1 + ends[::-1].index(index) if index in ends else -(index in best)), index

    return list(dict.fromkeys((min(pair, key=rank), max(pair, key=rank)) for pair in found))


def difference(left: Side, right: Side) -> Difference | None:
    """Of the queries that both answered; None where there is none, or a figure of them is no number."""
    (ours, of_left), (theirs, of_right) = left, right
    shared = [query for query in of_left if query in of_right]
    if not shared:
        return None
    sides = [[values[query] for query in shared] for values in (of_left, of_right)]
    found = paired_difference(kind_of(ours.metric), sides)
    if found is None:
        return None
    better, worse = flipped(sides[0], sides[1], ours.metric)
    return Difference(
        left=ours.label, right=theirs.label, task=ours.task, block=ours.block, metric=ours.metric, value=found.value,
        ci_low=found.ci_low, ci_high=found.ci_high, p=found.p, n=len(shared), units=found.units, test=found.test,
        detectable=_detectable(ours.metric, found.stderr, found.freedom),
        better=better, worse=worse,
    )  # fmt: skip


def _detectable(metric: str, stderr: float | None, freedom: int | None) -> float | None:
    """None where it is more than two figures of a share can differ."""
    if stderr is None:
        return None
    found = detectable(stderr, freedom)
    return None if scale(metric) == 100 and found > 1 else found


def flipped(left: Sequence[Any], right: Sequence[Any], metric: str) -> tuple[int | None, int | None]:
    """(queries on which left is better, on which it is worse); None of figures that no query has by itself."""
    if isinstance(left[0], Observed):
        gains = [a.terms[0] - b.terms[0] for a, b in zip(left, right, strict=True)]
    elif isinstance(left[0], Unit):
        gains = [a.nll - b.nll for a, b in zip(left, right, strict=True)]
    else:
        return None, None
    up, down = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return (up, down) if higher_is_better(metric) else (down, up)


def worth(value: object, metric: str) -> float | None:
    """What one query adds, so that more is better; None of figures that no query has by itself."""
    if isinstance(value, Observed):
        return value.terms[0] if higher_is_better(metric) else -value.terms[0]
    return -value.nll if isinstance(value, Unit) else None


def unpaired(groups: Sequence[Group], sides: Sequence[Side]) -> Iterator[Unpaired]:
    """Every pair of a block without a query that both answered."""
    for (ours, left), (theirs, right) in combinations(zip(groups, sides, strict=True), 2):
        if left[1].keys().isdisjoint(right[1].keys()):
            reason = why(ours, theirs, left[1], right[1])
            yield Unpaired(block=left[0].block, left=left[0].label, right=right[0].label, reason=reason)


def why(ours: Group, theirs: Group, left: Values, right: Values) -> str:
    """Why two groups of a block share no query."""
    if not left or not right:
        return "the answers are not kept"
    if not set(ours.seeds) & set(theirs.seeds):
        return f"other seeds ({_listed(ours.seeds)} and {_listed(theirs.seeds)})"
    if any(isinstance(value, Unit) for value in left.values()):
        return "no stretch of text was scored by both with one base and tokenizer"
    if {query[:3] for query in left} & {query[:3] for query in right}:
        return "other questions or answers under the same keys: other data, or another version of them"
    return "other queries"


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
