"""Who leads, which pairs of a block are tested and shown, and their differences, p adjusted within their family.

That a method is better than none is one question, that it loses something against icl another one: each is a family of
tests, and the many pairs of methods with each other make neither of them harder to answer.

none      a line against the floor: is it better than nothing?
icl       a line against the ceiling: does it lose something?
room      the ceiling against the floor: is there something to be gained?
state     a line under its own state, another text's and an empty one
others    all other pairs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal

from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT
from ttabench.report.method_rows import MethodRow, baseline_row, contenders, format_interval
from ttabench.stats import estimate as statistics
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL, PairedDifference, holm, stratified_mean
from ttabench.stats.metrics import metric_or_default

Family = Literal["none", "icl", "room", "state", "others"]
MAX_PAIRED_ROWS = 4
"""Entries of a block of which every pair is shown."""
Pair = tuple[int, int]
"""Places of two entries of a block, left and right."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The order of lines by their means over the blocks that they share."""

    order: tuple[str, ...]
    """Labels, the best first; at least one."""
    second: str
    """The best of another method, else of another setting; empty where there is none."""
    groups: tuple[int, ...]
    """Places of the blocks that count."""
    lines: int
    """How many there are in all; those that were not run in all of these blocks have no place in the order."""


def rank_rows(groups: Sequence[Sequence[MethodRow]]) -> Ranking | None:
    """The order of lines that are running; None where nothing is, or values have no mean. Lines of several blocks are
    ranked on blocks that all of them share: those that many share, so that lines times blocks is largest. Of equal ones
    those with fewer bytes of state come first. Values alone choose; what is said of them rests on the tests."""
    lines: dict[str, dict[int, MethodRow]] = {}
    for place, method_rows in enumerate(groups):
        for method_row in contenders(method_rows):
            lines.setdefault(method_row.label, {})[place] = method_row
    if not lines:
        return None

    def size(own: tuple[int, ...]) -> tuple[bool, int, int]:
        alike = sum(set(own) <= other.keys() for other in lines.values())
        return alike > 1, alike * len(own), len(own)

    shared = max(dict.fromkeys(map(tuple, lines.values())), key=size)
    ranked = {
        label: [own[place] for place in shared]
        for label, own in lines.items()
        if set(shared) <= own.keys()
    }
    if not have_mean([method_row.metric for method_row in next(iter(ranked.values()))]):
        return None

    def key(label: str) -> tuple[float, float, str]:
        own = ranked[label]
        return (
            -fmean(one.oriented_value for one in own),
            fmean(one.costs.get("state_bytes") or 0.0 for one in own),
            label,
        )

    leader, *rest = order = sorted(ranked, key=key)
    others = [label for label in rest if ranked[label][0].method != ranked[leader][0].method]
    second = next(iter([*others, *rest]), "")
    return Ranking(order=tuple(order), second=second, groups=shared, lines=len(lines))


def have_mean(metrics: Sequence[str]) -> bool:
    """Whether a mean over blocks says something: of fractions, or of one metric; not of perplexities, of which the
    largest decides."""
    if len(metrics) == 1 or all(metric_or_default(metric).scale == 100 for metric in metrics):
        return True
    return len(set(metrics)) == 1 and not metrics[0].startswith("ppl")


def pair_family(method_rows: Sequence[MethodRow], pair: Pair) -> Family:
    """The family of the test of two entries of a block."""
    one, other = (method_rows[place] for place in pair)
    baselines = [place for place in _baseline_places(method_rows) if place in pair]
    if len(baselines) == 2:
        return "room"
    if one.state_of != other.state_of and one.configuration_key == other.configuration_key:
        return "state"
    if (
        not baselines
        or one.exclusion_reason
        or other.exclusion_reason
        or "own" != one.state_of == other.state_of
    ):
        return "others"
    return "none" if method_rows[baselines[0]] is baseline_row(method_rows, NO_CONTEXT) else "icl"


def choose_pairs(
    method_rows: Sequence[MethodRow], ranking: Ranking | None, *, all_pairs: bool = False
) -> list[Pair]:
    """Pairs that are tested: all of at most four entries, or of any number if `all_pairs`. Of more: floor, ceiling and the
    leader against each that is running, and a line under its states. The floor stands right, then the ceiling; the
    leader left; the own state first."""
    baselines, kept = _baseline_places(method_rows), contenders(method_rows)
    lines = [
        place
        for place, method_row in enumerate(method_rows)
        if any(method_row is line for line in kept)
    ]
    leader = [place for place in lines if ranking and method_rows[place].label == ranking.order[0]]
    pairs = list(combinations(range(len(method_rows)), 2))
    if not all_pairs and len(method_rows) > MAX_PAIRED_ROWS:
        anchors, among = {*baselines, *leader} or {0}, {*baselines, *lines}
        pairs = [
            pair
            for pair in pairs
            if (anchors & {*pair} and {*pair} <= among) or pair_family(method_rows, pair) == "state"
        ]

    def with_sides_swapped(pair: Pair) -> Pair:
        order = {place: rank for rank, place in enumerate(reversed(baselines), 1)} | dict.fromkeys(
            leader, -1
        )
        one, other = pair
        right = pair_family(method_rows, pair) == "state" or order.get(one, 0) <= order.get(
            other, 0
        )
        return pair if right else (other, one)

    return list(map(with_sides_swapped, pairs))


def _baseline_places(method_rows: Sequence[MethodRow]) -> list[int]:
    """Places of the floor, then the ceiling."""
    baselines = (baseline_row(method_rows, method) for method in (NO_CONTEXT, FULL_CONTEXT))
    return [
        place
        for end in baselines
        if end
        for place, method_row in enumerate(method_rows)
        if method_row is end
    ]


@dataclass(frozen=True, kw_only=True)
class Difference(PairedDifference):
    """`left` minus `right` on the queries both answered, with what `stats.estimate` says of it."""

    left: str
    right: str
    task: str
    group: str
    metric: str
    n: int
    unit: str
    """What its units are, see `stats.clusters.SamplingUnit`; empty of blocks that differ in it."""
    p_holm: float | None = None
    """p, adjusted for all tests of its family, shown or not."""
    family: Family = "others"
    """See above."""
    tests: int = 1
    """How many tests its family has."""
    better: int | None = None
    """Queries on which left is better; of right and wrong answers, those that became right."""
    worse: int | None = None
    groups: int = 1
    """Over how many blocks it is the mean."""

    @property
    def is_significant(self) -> bool:
        """Whether it stays below 5 % once it is adjusted for its family."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE_LEVEL

    @property
    def shown(self) -> str:
        """It with its interval."""
        return format_interval(self.metric, self.value, self.ci_low, self.ci_high)

    @property
    def gain(self) -> float:
        """The value, so that more is better for left."""
        return self.value if metric_or_default(self.metric).higher_is_better else -self.value

    @property
    def outcome(self) -> int | None:
        """1 where left is better beyond chance, -1 where right is, 0 where neither is; None where no test was made."""
        if self.p_holm is None:
            return None
        return (1 if self.gain > 0 else -1) if self.is_significant else 0

    def with_sides_swapped(self) -> Difference:
        """Right less left."""
        low, high = (None if end is None else -end for end in (self.ci_high, self.ci_low))
        return replace(
            self,
            left=self.right,
            right=self.left,
            value=-self.value,
            ci_low=low,
            ci_high=high,
            better=self.worse,
            worse=self.better,
        )


def difference(left: MethodRow, right: MethodRow) -> Difference | None:
    """Of the queries that both answered; None where there is none, or a figure of them is no number."""
    shared = [query for query in left.values if query in right.values]
    left_values, right_values = ([line.values[query] for query in shared] for line in (left, right))
    estimated = (
        statistics.difference(left_values, right_values, metric_or_default(left.metric).figure)
        if shared
        else None
    )
    if estimated is None:
        return None
    oriented_values = (
        (oriented_value(one, left.metric), oriented_value(other, left.metric))
        for one, other in zip(left_values, right_values, strict=True)
    )
    gains = [one - other for one, other in oriented_values if one is not None and other is not None]
    better, worse = (
        (sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains))
        if gains
        else (None, None)
    )
    clusters = {
        (one.stratum, one.cluster) for one in left_values
    }  # of one cluster errors are over its queries
    return Difference(
        **vars(estimated),
        left=left.label,
        right=right.label,
        task=left.group_key.task,
        group=left.group_key.name,
        metric=left.metric,
        n=len(shared),
        better=better,
        worse=worse,
        unit=left.record.unit if estimated.units == len(clusters) else "query",
    )


def find_difference(differences: Iterable[Difference], left: str, right: str) -> Difference | None:
    """The difference of two labels, turned as they are named; None where it is not there."""
    one = next((one for one in differences if {one.left, one.right} == {left, right}), None)
    return one if one is None or one.left == left else one.with_sides_swapped()


def mean_difference(differences: Sequence[Difference]) -> Difference | None:
    """The mean of the differences of two lines over blocks; see `estimate.stratified_mean`. A block whose difference shows
    no error counts with none where all that varies agrees, and not at all where there is a single unit."""
    erring = [one for one in differences if one.stderr is not None or one.units > 1]
    if not erring or not have_mean([one.metric for one in erring]):
        return None
    first = erring[0]
    mean = stratified_mean(
        [(one.task, one) for one in erring], metric_or_default(first.metric).figure.span
    )
    flips = [
        (one.better, one.worse)
        for one in erring
        if one.better is not None and one.worse is not None
    ]
    better, worse = (sum(side) for side in zip(*flips, strict=True)) if flips else (None, None)
    return replace(
        first,
        **vars(mean),
        task="",
        group="",
        p_holm=None,
        n=sum(one.n for one in erring),
        unit=first.unit if len({one.unit for one in erring}) == 1 else "",
        groups=len(erring),
        better=better,
        worse=worse,
    )


def oriented_value(value: Observation, metric: str) -> float | None:
    """A query's term, so that more is better; None of figures that no query has by itself."""
    if metric_or_default(metric).corpus:
        return None
    return float(value.terms[0] if metric_or_default(metric).higher_is_better else -value.terms[0])


def comparable_pairs(method_rows: Sequence[MethodRow]) -> list[Pair]:
    """Every pair of a block that has a query which both answered, and so could be tested."""
    pairs = combinations(range(len(method_rows)), 2)
    return [
        pair
        for pair in pairs
        if not method_rows[pair[0]].values.keys().isdisjoint(method_rows[pair[1]].values)
    ]


def adjust_p_values(
    differences: Sequence[Difference], counts: Mapping[Family, int]
) -> list[Difference]:
    """The same differences, in order, with Holm's p within each family of so many tests as it could have."""
    holms: dict[int, Difference] = {}
    for family in {difference.family for difference in differences}:
        places = [
            place for place, difference in enumerate(differences) if difference.family == family
        ]
        tests = max(counts.get(family, 0), len(places))
        for place, p in zip(
            places, holm([differences[place].p for place in places], tests), strict=True
        ):
            holms[place] = replace(differences[place], p_holm=p, tests=tests)
    return [holms[place] for place in range(len(differences))]


def mean_differences(
    ranked_groups: Sequence[Sequence[Difference]],
    groups: Sequence[Sequence[Difference]],
    order: Sequence[str],
) -> list[Difference]:
    """Means over blocks with Holm's p, families of their own: of what was tested in each of the blocks that count for
    the standing (its labels in order), and of states in all blocks."""
    lines = len(order)
    counts: dict[Family, int] = {
        "none": lines,
        "icl": lines,
        "room": 1,
        "others": lines * (lines - 1) // 2,
    }
    kinds: tuple[Family, ...] = ("room", "none", "icl", "others") if order else ("room",)
    differences = [
        *_aligned_differences(ranked_groups, kinds, order),
        *_aligned_differences(groups, ("state",), ()),
    ]
    return adjust_p_values(
        [mean for alike in differences if (mean := mean_difference(alike)) is not None], counts
    )


def _aligned_differences(
    groups: Sequence[Sequence[Difference]], families: Sequence[Family], order: Sequence[str]
) -> Iterator[list[Difference]]:
    """The differences of each pair in several blocks, turned alike."""
    by_pair: dict[tuple[Family, frozenset[str]], list[Difference]] = {}
    for difference in (difference for group in groups for difference in group):
        labels = frozenset((difference.left, difference.right))
        baselines = {"room": 2, "none": 1, "icl": 1}.get(difference.family, 0)
        if difference.family not in families or (
            order and len(labels & set(order)) < 2 - baselines
        ):
            continue
        if difference.family == "others" and order[0] not in labels:
            continue
        own = by_pair.setdefault((difference.family, labels), [])
        own.append(
            difference
            if not own or own[0].left == difference.left
            else difference.with_sides_swapped()
        )
    yield from (alike for alike in by_pair.values() if len(alike) > 1)
