"""The difference of two lines, in a block or over several, and why two lines of a block cannot be paired."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from itertools import count as count_up
from typing import Any

from ttabench.report.blocks import Group
from ttabench.report.choosing import Family
from ttabench.report.entries import Entry, higher_is_better
from ttabench.report.figures import scale
from ttabench.report.pairing import Values, kind_of
from ttabench.report.standings import can_be_averaged
from ttabench.stats.aggregation import Unit, paired_difference
from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import SIGN
from ttabench.stats.stratified import Part, stratified
from ttabench.stats.testing import LEVEL, detectable, needed, unanimous

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
    """The same, adjusted for all tests of its family, shown or not."""
    family: Family = "others"
    """See `choosing`."""
    tests: int = 1
    """How many tests its family has."""
    n: int
    """Queries."""
    units: int
    """Units that vary among them: documents, draws of a sub-task, books; see `stats.estimate`."""
    test: str = ""
    """The test that p is of, see `stats.estimate.TESTS`; empty where there is none."""
    stderr: float | None = None
    freedom: float | None = None
    """Degrees of freedom of the test; None where it has none."""
    detectable: float | None = None
    """The smallest true difference that such a test finds four times in five."""
    better: int | None = None
    """Queries on which left is better; of right and wrong answers, those that became right."""
    worse: int | None = None
    across: int = 0
    """How many of what else varies, where two things are crossed; see `clusters.Spread`."""
    shares: tuple[float, float] = (1.0, 0.0)
    """How much of the variance units show by themselves, and what else varies."""
    blocks: int = 1
    """Over how many blocks it is the mean."""

    @property
    def beyond_chance(self) -> bool:
        """Whether it stays below 5 % once it is adjusted for its family."""
        return self.p_holm is not None and self.p_holm < LEVEL

    @property
    def gain(self) -> float:
        """The value, so that more is better for left."""
        return self.value if higher_is_better(self.metric) else -self.value

    @property
    def outcome(self) -> int | None:
        """1 where left is better beyond chance, -1 where right is, 0 where neither is; None where no test was made."""
        if self.p_holm is None:
            return None
        return (1 if self.gain > 0 else -1) if self.beyond_chance else 0

    def turned(self) -> Difference:
        """Right less left."""
        low, high = (None if end is None else -end for end in (self.ci_high, self.ci_low))
        return replace(self, left=self.right, right=self.left, value=-self.value, ci_low=low, ci_high=high,
                       better=self.worse, worse=self.better)  # fmt: skip

    @property
    def more_across(self) -> bool:
        """Whether what else varies makes the larger part of the error."""
        return self.shares[1] > self.shares[0]

    @property
    def needed(self) -> int | None:
        """Of what makes the larger part of the error: how many would find a true difference of this size four times in
        five; None for any number."""
        if self.test == SIGN:
            return next(count for count in count_up(self.units) if unanimous(count) < LEVEL / self.tests)
        if not self.stderr or not self.value:
            return None
        count, fixed = (self.across if self.more_across else self.units), max(0.0, 1 - max(self.shares))
        return needed(self.value, self.stderr, self.freedom, count, level=LEVEL / self.tests, fixed=fixed)


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """Two entries of a block without a difference, and why."""

    block: str
    left: str
    right: str
    reason: str


def difference(left: Side, right: Side) -> Difference | None:
    """Of the queries that both answered; None where there is none, or a figure of them is no number."""
    (ours, of_left), (theirs, of_right) = left, right
    shared = [query for query in of_left if query in of_right]
    if not shared:
        return None
    sides = [[values[query] for query in shared] for values in (of_left, of_right)]
    apart = paired_difference(kind_of(ours.metric), sides)
    if apart is None:
        return None
    better, worse = flipped(sides[0], sides[1], ours.metric)
    return Difference(
        left=ours.label, right=theirs.label, task=ours.task, block=ours.block, metric=ours.metric, value=apart.value,
        ci_low=apart.ci_low, ci_high=apart.ci_high, p=apart.p, n=len(shared), units=apart.units, test=apart.test,
        detectable=_detectable(ours.metric, apart.stderr, apart.freedom), stderr=apart.stderr, freedom=apart.freedom,
        across=apart.across, shares=apart.shares, better=better, worse=worse,
    )  # fmt: skip


def between(differences: Iterable[Difference], left: str, right: str) -> Difference | None:
    """The difference of two labels, turned as they are named; None where it is not there."""
    for one in differences:
        if {one.left, one.right} == {left, right}:
            return one if one.left == left else one.turned()
    return None


def overall(differences: Sequence[Difference]) -> Difference | None:
    """The mean of the differences of two lines over blocks; see `stats.stratified`.

    A block whose difference shows no error counts with none where all that varies agrees, and not at all where there is
    a single unit.
    """
    known = [one for one in differences if one.stderr is not None or one.units > 1]
    if not known or not can_be_averaged([one.metric for one in known]):
        return None
    first = known[0]
    parts = [Part(one.task, one.value, one.stderr or 0.0, one.freedom, one.units, one.across, one.shares)
             for one in known]  # fmt: skip
    mean = stratified(parts, 1.0 if scale(first.metric) == 100 else math.inf)
    flips = [(one.better, one.worse) for one in known if one.better is not None and one.worse is not None]
    return replace(
        first, task="", block="", value=mean.value, ci_low=mean.ci_low, ci_high=mean.ci_high, p=mean.p, p_holm=None,
        n=sum(one.n for one in known), units=mean.units, test=mean.test, stderr=mean.stderr, freedom=mean.freedom,
        detectable=_detectable(first.metric, mean.stderr, mean.freedom), across=mean.across, shares=mean.shares,
        blocks=len(known),
        better=sum(up for up, _ in flips) if flips else None, worse=sum(down for _, down in flips) if flips else None,
    )  # fmt: skip


def _detectable(metric: str, stderr: float | None, freedom: float | None) -> float | None:
    """None where it is more than two figures of a share can differ."""
    if stderr is None:
        return None
    smallest = detectable(stderr, freedom)
    return None if scale(metric) == 100 and smallest > 1 else smallest


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
    """A query's term, so that more is better; None of figures that no query has by itself."""
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
