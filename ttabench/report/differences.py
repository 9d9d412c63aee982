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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist, fmean
from typing import Literal

from ttabench.report.groups import BASELINES, FULL_CONTEXT, NO_CONTEXT
from ttabench.report.method_rows import CONTENDER, MethodRow, contenders, format_interval
from ttabench.stats import estimate as statistics
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL, PairedDifference, holm, stratified_mean
from ttabench.stats.metrics import metric_or_default

Family = Literal["none", "icl", "room", "state", "others"]
MAX_PAIRED_ROWS = 4
"""Maximum number of rows of a group for which every pair is tested."""
POWER = 0.8
MAX_TIMES_NEEDED = 20
"""Larger numbers of units than this multiple of the present one are not estimated."""
Pair = tuple[MethodRow, MethodRow]
"""Two rows of a group, left and right."""


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


def pair_family(one: MethodRow, other: MethodRow) -> Family:
    """Return the family of a pair of rows of a group."""
    roles = {one.role, other.role}
    if roles == {*BASELINES}:
        return "room"
    if one.state_of != other.state_of and one.configuration_key == other.configuration_key:
        return "state"
    if one.exclusion_reason or other.exclusion_reason:
        return "others"
    return "none" if NO_CONTEXT in roles else "icl" if FULL_CONTEXT in roles else "others"


def choose_pairs(
    method_rows: Sequence[MethodRow], ranking: Ranking | None, *, all_pairs: bool = False
) -> list[Pair]:
    """Choose the pairs that are tested: all of at most `MAX_PAIRED_ROWS` rows, or with `all_pairs`.

    With more rows: the baselines and the leader against each contender, and the states of each
    configuration. `none` is on the right, else `icl`; the leader is on the left; the own state too.
    """

    def side(row: MethodRow) -> int:
        is_leader = row.role == CONTENDER and ranking and row.label == ranking.order[0]
        return -1 if is_leader else {FULL_CONTEXT: 1, NO_CONTEXT: 2}.get(row.role, 0)

    takes_all, has_anchor = (
        all_pairs or len(method_rows) <= MAX_PAIRED_ROWS,
        any(map(side, method_rows)),
    )
    pairs = list[Pair]()
    for one, other in combinations(method_rows, 2):
        is_anchored = side(one) or side(other) or (not has_anchor and one is method_rows[0])
        if pair_family(one, other) == "state":
            pairs.append((one, other))
        elif takes_all or (is_anchored and one.role and other.role):
            pairs.append((one, other) if side(one) <= side(other) else (other, one))
    return pairs


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
    def units_needed(self) -> int | None:
        """Number of sampling units with which this difference would be significant in 80 % of cases.

        If difference and variance stay the same, by the normal distribution, at the Bonferroni level
        of the family: Holm's level is the same or larger. None if it is significant, without an
        error, or if two sources vary; also above `MAX_TIMES_NEEDED` times the present number.
        """
        if self.is_significant or not self.stderr or not self.value or self.crossed:
            return None
        level, normal = SIGNIFICANCE_LEVEL / self.tests, NormalDist()
        z = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(POWER)
        ratio = z * self.stderr / self.value
        times = ratio * ratio
        return math.ceil(self.units * times) if times <= MAX_TIMES_NEEDED else None

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
    if not shared:
        return None
    left_values, right_values = ([row.values[query] for query in shared] for row in (left, right))
    estimated = statistics.difference(
        left_values, right_values, metric_or_default(left.metric).figure
    )
    if estimated is None:
        return None
    oriented = (oriented_values(values, left.metric) for values in (left_values, right_values))
    gains = [one - other for one, other in zip(*oriented, strict=True)]
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
        better=sum(gain > 0 for gain in gains) if gains else None,
        worse=sum(gain < 0 for gain in gains) if gains else None,
        unit=left.record.unit if estimated.units == len(clusters) else "query",
        family=pair_family(left, right),
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
    return replace(
        first,
        **vars(mean),
        task="",
        group="",
        p_holm=None,
        n=sum(one.n for one in with_error),
        unit=first.unit if len({one.unit for one in with_error}) == 1 else "",
        groups=len(with_error),
        better=sum(better for better, _ in flips) if flips else None,
        worse=sum(worse for _, worse in flips) if flips else None,
    )


def oriented_values(values: Iterable[Observation], metric: str) -> list[float]:
    """Return the terms of queries, signed so that higher is better; [] for a corpus metric."""
    chosen = metric_or_default(metric)
    sign = 1.0 if chosen.higher_is_better else -1.0
    return [] if chosen.corpus else [sign * value.terms[0] for value in values]


def share_query(one: MethodRow, other: MethodRow) -> bool:
    """Return True if two rows have a query in common, and so could be tested."""
    return not one.values.keys().isdisjoint(other.values)


def adjust_p_values(
    differences: Sequence[Difference], counts: Mapping[Family, int]
) -> list[Difference]:
    """Return the differences with Holm's p; `counts` has the number of possible tests by family."""
    adjusted = list(differences)
    for family in {one.family for one in differences}:
        places = [place for place, one in enumerate(differences) if one.family == family]
        tests = max(counts.get(family, 0), len(places))
        p_values = holm([differences[place].p for place in places], tests)
        for place, p in zip(places, p_values, strict=True):
            adjusted[place] = replace(adjusted[place], p_holm=p, tests=tests)
    return adjusted


def mean_differences(
    groups: Sequence[Sequence[Difference]], ranked_groups: Sequence[int], order: Sequence[str]
) -> list[Difference]:
    """Return mean differences over groups with Holm's p; they have their own families.

    Means are over the ranked groups for the labels in `order`, and over all groups for states.
    """
    ranked_labels = {"room": 0, "none": 1, "icl": 1, "others": 2, "state": 0}
    alike: dict[tuple[Family, frozenset[str]], list[Difference]] = {}
    for place, group in enumerate(groups):
        for one in group:
            family, labels = one.family, frozenset((one.left, one.right))
            is_ranked = place in ranked_groups or family == "state"
            is_shown = family != "others" or (order[:1] and order[0] in labels)
            if is_ranked and is_shown and len(labels & {*order}) >= ranked_labels[family]:
                own = alike.setdefault((family, labels), [])
                is_same_side = not own or own[0].left == one.left
                own.append(one if is_same_side else one.with_sides_swapped())
    pairs = sorted(alike.items(), key=lambda item: item[0][0] == "state")
    means = [mean_difference(own) for _, own in pairs if len(own) > 1]
    rows = len(order)
    counts: dict[Family, int] = {
        "room": 1,
        "none": rows,
        "icl": rows,
        "others": rows * (rows - 1) // 2,
    }
    return adjust_p_values([mean for mean in means if mean is not None], counts)
