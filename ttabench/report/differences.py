"""Ranking of method rows, choice of the pairs that are tested, and their differences.

Holm's p is adjusted within families of tests. Each family is one question, so the many pairs of
methods do not weaken the tests against the baselines. Records store these names:

none      row against the no-context baseline: does the method gain anything?
icl       row against the full-context baseline: does the method lose anything?
room      full-context against no-context baseline: can anything be gained?
state     own, swapped and empty state of one configuration
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
"""Maximum number of rows of a group for which every pair is tested."""
Pair = tuple[int, int]
"""Indices of two rows of a group, left and right."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranking of rows by their mean over the groups that they share."""

    order: tuple[str, ...]
    """Labels, best first; at least one."""
    second: str
    """Label of the best row of a different method, else with different settings; may be empty."""
    groups: tuple[int, ...]
    """Indices of the groups that count."""
    lines: int
    """Number of labels, including those that are not ranked because a group lacks them."""


def rank_rows(groups: Sequence[Sequence[MethodRow]]) -> Ranking | None:
    """Rank the contenders of all groups; None if there are none, or if values have no common mean.

    Rows are ranked on groups that all of them share, chosen to maximize rows times groups. Ties are
    broken by fewer state bytes. The ranking uses values only; statements rest on the tests.
    """
    lines: dict[str, dict[int, MethodRow]] = {}
    for place, method_rows in enumerate(groups):
        for method_row in contenders(method_rows):
            lines.setdefault(method_row.label, {})[place] = method_row
    if not lines:
        return None

    def size(own: tuple[int, ...]) -> tuple[bool, int, int]:
        count = sum(set(own) <= other.keys() for other in lines.values())
        return count > 1, count * len(own), len(own)

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
    """Return True if a mean over groups is meaningful: for fractions, or for a single metric.

    Not for perplexities, because the largest one decides their mean.
    """
    if len(metrics) == 1 or all(metric_or_default(metric).scale == 100 for metric in metrics):
        return True
    return len(set(metrics)) == 1 and not metrics[0].startswith("ppl")


def pair_family(method_rows: Sequence[MethodRow], pair: Pair) -> Family:
    """Return the family of a pair of rows."""
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
    """Choose the pairs that are tested: all of at most `MAX_PAIRED_ROWS` rows, or with `all_pairs`.

    With more rows: the baselines and the leader against each contender, and the states of each
    configuration. `none` is on the right, else `icl`; the leader is on the left; the own state too.
    """
    baselines, kept = _baseline_places(method_rows), contenders(method_rows)
    lines = [
        place
        for place, method_row in enumerate(method_rows)
        if any(method_row is one for one in kept)
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
    """Return the indices of `none`, then of `icl`."""
    baselines = (baseline_row(method_rows, method) for method in (NO_CONTEXT, FULL_CONTEXT))
    return [
        place
        for baseline in baselines
        if baseline
        for place, method_row in enumerate(method_rows)
        if method_row is baseline
    ]


@dataclass(frozen=True, kw_only=True)
class Difference(PairedDifference):
    """`left` minus `right` on the queries that both answered, with its interval and test."""

    left: str
    right: str
    task: str
    group: str
    metric: str
    n: int
    unit: str
    """Sampling unit, see `stats.clusters.SamplingUnit`; empty for groups with different units."""
    p_holm: float | None = None
    """p adjusted for all tests of its family, shown or not."""
    family: Family = "others"
    """Family of tests, see the module."""
    tests: int = 1
    """Number of tests of its family."""
    better: int | None = None
    """Number of queries on which left is better."""
    worse: int | None = None
    """Number of queries on which left is worse."""
    groups: int = 1
    """Number of groups that are averaged."""

    @property
    def is_significant(self) -> bool:
        """True if Holm's p is below 5 %."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE_LEVEL

    @property
    def shown(self) -> str:
        """Difference with its interval, formatted."""
        return format_interval(self.metric, self.value, self.ci_low, self.ci_high)

    @property
    def gain(self) -> float:
        """Difference, signed so that a positive value favours left."""
        return self.value if metric_or_default(self.metric).higher_is_better else -self.value

    @property
    def outcome(self) -> int | None:
        """1 if left is significantly better, -1 if right is, 0 if neither; None if not tested."""
        if self.p_holm is None:
            return None
        return (1 if self.gain > 0 else -1) if self.is_significant else 0

    def with_sides_swapped(self) -> Difference:
        """Return right minus left."""
        low, high = (None if bound is None else -bound for bound in (self.ci_high, self.ci_low))
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
    """Return left minus right on their shared queries; None if there are none or it is not finite."""
    shared = [query for query in left.values if query in right.values]
    left_values, right_values = ([row.values[query] for query in shared] for row in (left, right))
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
    # with a single cluster, errors are over its queries
    clusters = {(one.stratum, one.cluster) for one in left_values}
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
    """Return the difference of two labels, left minus right; None if it is missing."""
    one = next((one for one in differences if {one.left, one.right} == {left, right}), None)
    return one if one is None or one.left == left else one.with_sides_swapped()


def mean_difference(differences: Sequence[Difference]) -> Difference | None:
    """Return the mean difference of two rows over groups, see `estimate.stratified_mean`.

    A difference without a standard error counts with an error of 0 if it has several units, and is
    left out if it has one. None if none is left, or if the metrics have no common mean.
    """
    with_error = [one for one in differences if one.stderr is not None or one.units > 1]
    if not with_error or not have_mean([one.metric for one in with_error]):
        return None
    first = with_error[0]
    mean = stratified_mean(
        [(one.task, one) for one in with_error], metric_or_default(first.metric).figure.span
    )
    flips = [
        (one.better, one.worse)
        for one in with_error
        if one.better is not None and one.worse is not None
    ]
    better, worse = (sum(side) for side in zip(*flips, strict=True)) if flips else (None, None)
    return replace(
        first,
        **vars(mean),
        task="",
        group="",
        p_holm=None,
        n=sum(one.n for one in with_error),
        unit=first.unit if len({one.unit for one in with_error}) == 1 else "",
        groups=len(with_error),
        better=better,
        worse=worse,
    )


def oriented_value(value: Observation, metric: str) -> float | None:
    """Return the term of a query, signed so that higher is better; None for a corpus metric."""
    if metric_or_default(metric).corpus:
        return None
    return float(value.terms[0] if metric_or_default(metric).higher_is_better else -value.terms[0])


def comparable_pairs(method_rows: Sequence[MethodRow]) -> list[Pair]:
    """Return the pairs of rows that share a query, and so could be tested."""
    pairs = combinations(range(len(method_rows)), 2)
    return [
        pair
        for pair in pairs
        if not method_rows[pair[0]].values.keys().isdisjoint(method_rows[pair[1]].values)
    ]


def adjust_p_values(
    differences: Sequence[Difference], counts: Mapping[Family, int]
) -> list[Difference]:
    """Return the differences with Holm's p; `counts` has the number of possible tests by family."""
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
    """Return mean differences over groups with Holm's p; they have their own families.

    Means are over the ranked groups for the labels in `order`, and over all groups for states.
    """
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
    """Yield the differences of each pair that is in several groups, all with the same left side."""
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
