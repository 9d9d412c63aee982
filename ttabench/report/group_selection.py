"""Differences of labels over one or several comparison groups, and their words.

GroupSelection(comparison, groups).describe_difference("mac", "icl")
    "21.9 points [-0.6, 41.8] below icl (87.5), p 0.09, not significant (265 questions)"

Intervals are 95 %. Significance is Holm's p over all tests of a family, at 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import get_args

from ttabench.report.compare import Comparison, ComparisonGroup
from ttabench.report.differences import Difference, find_difference
from ttabench.report.method_rows import (
    MethodRow,
    baseline_row,
    format_interval,
    format_without_error,
)
from ttabench.run.budget import budget_of_config
from ttabench.stats.clusters import SamplingUnit
from ttabench.stats.metrics import metric_or_default

MAX_LISTED_NAMES = 3
"""More names than this are counted."""
UNIT_NAMES: dict[str, str] = {
    "": "units",
    **{unit: f"{unit}s" for unit in get_args(SamplingUnit)},
    "query": "questions",
}
CROSSED_UNIT_NAMES: dict[str, str] = dict.fromkeys(UNIT_NAMES, "draws") | {
    "group": "documents",
    "draw": "questions",
}
"""Second unit that varies, where published rows are used under several seeds."""


@dataclass(frozen=True)
class GroupSelection:
    """Groups of a comparison: one, or several with means over them."""

    comparison: Comparison
    groups: Sequence[ComparisonGroup]

    @property
    def metric(self) -> str:
        """Metric of the first group: groups that are averaged have one metric, or are all fractions."""
        return self.groups[0].group_key.metric

    def rows_of_both(
        self, one: str, other: str
    ) -> list[tuple[ComparisonGroup, MethodRow, MethodRow]]:
        """Return the rows of two labels, for each group that has both and excludes neither."""
        return [
            (group, a, b)
            for group in self.groups
            if (a := group.find_row(one)) and (b := group.find_row(other))
            if not (a.exclusion_reason or b.exclusion_reason)
        ]

    def find_test(self, left: str, right: str) -> Difference | None:
        """Return the difference of two labels, or its mean over several groups; None if not tested."""
        groups = self.groups
        if len(groups) > 1:
            groups = [group for group, _, _ in self.rows_of_both(left, right)]
        differences = groups[0].differences if len(groups) == 1 else self.comparison.overall
        return find_difference(differences, left, right)

    def baseline(self, method: str) -> str:
        """Return the label of a baseline; empty if no group has one."""
        found = (baseline_row(group.method_rows, method) for group in self.groups)
        return next((row.label for row in found if row), "")

    def shown(self, label: str) -> str:
        """Format the figure of a row, or its mean over the groups that have it."""
        values = [row.value for group in self.groups if (row := group.find_row(label))]
        return format_without_error(self.metric, fmean(values))

    def describe_difference(self, left: str, right: str, name: str = "") -> str:
        """Describe a difference: `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09, not significant (265 questions)`.

        `name` replaces the label of right.
        """
        values = [(one.value, other.value) for _, one, other in self.rows_of_both(left, right)]
        tested, metric = self.find_test(left, right), metric_or_default(self.metric)
        points = " points" if metric.scale == 100 else ""
        labelled = f"{name or right} ({format_without_error(self.metric, fmean(other for _, other in values))})"
        value = tested.value if tested else fmean(one - other for one, other in values)
        words = ("above", "below") if metric.higher_is_better else ("worse than", "better than")
        is_zero = math.isclose(value, 0.0, abs_tol=1e-12)
        relation = f"{'from' if is_zero else words[value < 0]} {labelled}"
        if tested is None:
            return f"{format_without_error(self.metric, abs(value))}{points} {relation}, not tested"
        counts = [(one.n, other.n) for _, one, other in self.rows_of_both(left, right)]
        where = f" (on the {tested.n:,} questions that both answered)"
        if {tested.n} == {*map(sum, zip(*counts, strict=True))}:
            where = ""
        if value == 0 and not (tested.better or tested.worse):
            return f"equal to {labelled} on all {tested.n:,} questions{where}"
        own = tested if value > 0 else tested.with_sides_swapped()
        amount = format_interval(self.metric, own.value, own.ci_low, own.ci_high, points)
        return f"{amount} {relation}{_significance(tested)}{where}"


def _significance(tested: Difference) -> str:
    if (p := tested.p_holm) is None:
        return ", not testable"
    amount = "<0.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.2g}"
    p_value = f", {'p' if tested.tests == 1 else 'Holm p'} {amount}"
    if tested.is_significant:
        return p_value
    unit = "query" if tested.units == tested.n else tested.unit
    units = [(tested.units, UNIT_NAMES[unit]), (tested.crossed, CROSSED_UNIT_NAMES[tested.unit])]
    sizes = " and ".join(f"{count:,} {word}" for count, word in units if count)
    needed = tested.units_needed or 0
    if tested.units < needed:
        step = 10 ** max(0, len(str(needed)) - 2)  # two digits, rounded up
        sizes += f"; about {math.ceil(needed / step) * step:,} would be needed"
    return f"{p_value}, not significant ({sizes})"


def has_single_unit(group: ComparisonGroup) -> bool:
    """Return True if a group has one sampling unit (per sub-task) with several queries: errors are too small."""
    clusters: dict[str, Counter[str]] = {}
    for value in chain.from_iterable(row.values.values() for row in group.method_rows):
        clusters.setdefault(value.stratum, Counter())[value.cluster] += 1
    counts = [count for own in clusters.values() for count in own.values()]
    return len(counts) == len(clusters) and max(counts, default=0) > len(group.method_rows)


def list_names(names: Sequence[str], noun: str = "others") -> str:
    """Join names: `a, b and c`; more than `MAX_LISTED_NAMES` are counted."""
    if len(names) > MAX_LISTED_NAMES:
        return f"{len(names)} {noun}"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def relative_bytes(
    pairs: Sequence[tuple[ComparisonGroup, MethodRow, MethodRow]], other: str
) -> str:
    """Compare state bytes: `2.5 % of the state bytes of icl`, the geometric mean over groups.

    Empty if equal, zero or unknown, and under a budget, which counts other bytes than those of states.
    """
    sides = [
        (one.costs.get("state_bytes"), end.costs.get("state_bytes"))
        for _, one, end in pairs
        if budget_of_config(one.record.config) is None
    ]
    ratios = [math.log(a / b) for a, b in sides if a and b]
    percent = 100 * math.exp(fmean(ratios)) if ratios else 100.0
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return "" if math.isclose(percent, 100) else f"{shown} % of the state bytes of {other}"
