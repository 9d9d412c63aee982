"""The first lines of a comparison: who leads and by how much, what is not settled, and what does not count; by rules.

    mac (65.6) is 65.6 points [43.5, 80.0] above none (0.0), p <0.001; 21.9 points [-0.6, 41.8] below icl (87.5) ...
    It recovers 75 % of the way from none to icl, and keeps 2.5 % of the bytes of icl.
    templora: own state 78.1, another text's 74.7, an empty one 100.0. Its state does not help here: own is 21.9 ...

Whom they are about is chosen by values, what is said of differences rests on the tests (`differences`). An interval in
brackets is that of 95 %; "settled" is what Holm's p, over all tests of its family, says at 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import NamedTuple, get_args

from ttabench.report.compare import Comparison, ComparisonGroup, recovered_over_groups
from ttabench.report.differences import Difference, Ranking, find_difference, have_mean
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT
from ttabench.report.method_rows import (
    MethodRow,
    baseline_candidates,
    baseline_row,
    contenders,
    format_interval,
    format_without_error,
)
from ttabench.run.budget import budget_of_config
from ttabench.stats.clusters import SamplingUnit
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL
from ttabench.stats.metrics import metric_or_default

MAX_LISTED_NAMES = 3
"""So many names are listed; more are counted."""
UNIT_NAMES: dict[str, str] = {
    "": "units",
    **{unit: f"{unit}s" for unit in get_args(SamplingUnit)},
    "query": "questions",
}
CROSSED_UNIT_NAMES: dict[str, str] = dict.fromkeys(UNIT_NAMES, "draws") | {
    "group": "documents",
    "draw": "questions",
}
"""The second unit that varies, where published rows are asked under several seeds."""
FULL_CONTEXT_HINT = (
    "Check its prompt, what was cut of the context, and whether the base model can use so long a text. A method that "
    "was trained for the task, or that chooses what to read, may be better without a fault."
)
OUTCOME_PHRASES = {
    1: "better than",
    -1: "worse than",
    0: "not settled against",
    None: "not tested against",
}
STATE_NAMES = {"own": "own state", "other": "another text's", "none": "an empty one"}


class MemoryOutcome(Enum):
    """Outcome of the tests of a method's own state.

    Better is what the paired tests say, adjusted for all tests of states. What is better than one of the two others
    only may have gained from practice with such texts.
    """

    HOLDS = "Its state helps, and it holds this text"
    HELPS = "Its state helps; whether it holds this text, another text's state would say"
    PART = "Its state helps in part; that it holds this text is not shown"
    OPEN = "Its state is not shown to help here"
    HURTS = "Its state does not help here"
    UNTESTED = "No test of its state can be made"


class StateLabels(NamedTuple):
    """The labels of one configuration under its states; empty where one was not run."""

    own: str
    other: str
    none: str


def verdict(comparison: Comparison) -> str:
    """All sentences in one line."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> list[str]:
    """The first lines: each a sentence or more, with their full stops."""
    groups, ranking = comparison.groups, comparison.ranking
    first = list(_state_sentences(comparison))
    if ranking is not None:
        selection = GroupSelection(comparison, [groups[place] for place in ranking.groups])
        ranking_sentences = [
            *_leader_sentence(selection, ranking),
            *_baseline_sentences(selection, ranking),
        ]
        # of one method under several states these are the question
        first = (
            [*first, *ranking_sentences]
            if len(ranking.order) == 1
            else [*ranking_sentences, *first]
        )
    elif not have_mean([group.group_key.metric for group in groups]):
        first.insert(
            0, f"Values of these {len(groups)} blocks have no mean: each block stands for itself."
        )
    else:
        first += _baselines_alone(GroupSelection(comparison, groups))
    alone = (
        "No row leads: there are no two methods of the same task, source and base model to rank."
    )
    return [*(first or [alone]), *caution_sentences(comparison)]


def _leader_sentence(selection: GroupSelection, ranking: Ranking) -> Iterator[str]:
    """The leader and the second, and the leader against all others."""
    leader, second = ranking.order[0], ranking.second
    if not second:
        return
    best, tested, several = (
        selection.shown(leader),
        selection.find_test(leader, second),
        len(selection.groups) > 1,
    )
    equal = math.isclose(selection.gap(leader, second), 0.0, abs_tol=1e-12)
    leads = (
        tested
        and tested.outcome is not None
        and not equal
        and _beats_swapped_state(selection, leader)
    )
    first = f"{leader} {'leads with' if leads else 'has'} the best {'mean' if several else selection.metric}, {best}"
    by_outcome: dict[int | None, list[str]] = {outcome: [] for outcome in OUTCOME_PHRASES}
    for label in ranking.order:
        if label not in (leader, second):
            by_outcome[
                difference.outcome if (difference := selection.find_test(leader, label)) else None
            ].append(label)
    clauses = [
        f"{OUTCOME_PHRASES[outcome]} {list_names(labels)}"
        for outcome, labels in by_outcome.items()
        if labels
    ]
    parts = [
        f"{_groups_prefix(selection, ranking)}{first}, {selection.describe_difference(leader, second)}"
    ]
    parts += [f"It is {'; '.join(clauses)}"] if clauses else []
    yield ". ".join(parts) + "."


def _groups_prefix(selection: GroupSelection, ranking: Ranking) -> str:
    """Which blocks count, where there are several."""
    if len(selection.comparison.groups) == 1:
        return ""
    if len(selection.groups) == 1:
        return f"On {selection.groups[0].group_key.brief}, "
    return f"On the {len(selection.groups)} blocks that {len(ranking.order)} of {ranking.lines} lines share, "


def _baseline_sentences(selection: GroupSelection, ranking: Ranking) -> Iterator[str]:
    """The leader against floor and ceiling, and how much of the way between them it goes."""
    leader, several = ranking.order[0], len(selection.groups) > 1
    no_context, full_context = selection.end(NO_CONTEXT), selection.end(FULL_CONTEXT)
    baselines = [
        end for end in (no_context, full_context) if end and selection.rows_of_both(leader, end)
    ]
    if not baselines:
        return
    clauses = "; ".join(selection.describe_difference(leader, end) for end in baselines)
    where = "" if ranking.second else _groups_prefix(selection, ranking)
    yield f"{where}{leader} ({selection.shown(leader)}{' on average' * several}) is {clauses}."
    yield from _recovery_sentences(selection, leader, no_context, full_context)


def _recovery_sentences(
    selection: GroupSelection, leader: str, no_context: str, full_context: str
) -> Iterator[str]:
    """The share of the way from floor to ceiling, over all blocks that have both, lost ones too."""
    if not no_context or not full_context or not selection.rows_of_both(full_context, no_context):
        return
    part, groups = recovered_over_groups(selection.groups, leader)
    baseline_gap, gain = (
        selection.find_test(full_context, no_context),
        selection.find_test(leader, no_context),
    )
    if baseline_gap is None or baseline_gap.p is None:
        return
    if baseline_gap.p >= SIGNIFICANCE_LEVEL or baseline_gap.gain < 0:
        zero = baseline_gap.value == 0 and not (baseline_gap.better or baseline_gap.worse)
        what = "no gap" if zero or baseline_gap.p < SIGNIFICANCE_LEVEL else "no significant gap"
        yield f"There is {what} to recover: {full_context} ({selection.shown(full_context)}) is {selection.describe_difference(full_context, no_context)}."
    elif (
        part is not None and gain is not None and gain.is_significant
    ):  # no share where they were not asked alike
        where = (
            ""
            if groups == len(selection.groups)
            else f" on {groups} of {len(selection.groups)} blocks"
        )
        at = relative_bytes(selection.rows_of_both(leader, full_context), full_context)
        kept = f", and keeps {at}" if at else ""
        yield f"It recovers {round(100 * part) + 0:d} % of the way from {no_context} to {full_context}{where}{kept}."


def _baselines_alone(selection: GroupSelection) -> Iterator[str]:
    """Floor and ceiling alone."""
    no_context, full_context = selection.end(NO_CONTEXT), selection.end(FULL_CONTEXT)
    if (
        shared := [group for group, _, _ in selection.rows_of_both(full_context, no_context)]
        if no_context and full_context
        else []
    ):
        selection = GroupSelection(selection.comparison, shared)
        mean = " on average" * (len(selection.groups) > 1)
        head = f"No method between {no_context} and {full_context}: {full_context} ({selection.shown(full_context)}{mean}) is"
        yield f"{head} {selection.describe_difference(full_context, no_context)}."


def _state_sentences(comparison: Comparison) -> Iterator[str]:
    """One for each configuration that was run under its own state and another one; where values cannot be averaged one
    a block."""
    places: dict[StateLabels, list[ComparisonGroup]] = {}
    for group in comparison.groups:
        for swapped in _state_labels(group.method_rows):
            places.setdefault(swapped, []).append(group)
    for swapped, groups in places.items():
        alike = have_mean([group.group_key.metric for group in groups])
        yield from (
            _state_sentence(GroupSelection(comparison, own), swapped)
            for own in ([groups] if alike else [[group] for group in groups])
        )


def _beats_swapped_state(selection: GroupSelection, label: str) -> bool:
    """Whether a line is better under its own state than under another text's, beyond chance, or was not run so."""
    others = {
        swapped.other
        for group in selection.groups
        for swapped in _state_labels(group.method_rows)
        if swapped.own == label
    }
    return all(_state_outcome(selection, label, other) == 1 for other in others if other)


def _state_labels(method_rows: Sequence[MethodRow]) -> Iterator[StateLabels]:
    labels: dict[str, dict[str, str]] = {}
    for method_row in method_rows:
        labels.setdefault(method_row.configuration_key, {})[method_row.state_of] = method_row.label
    for own in labels.values():
        if "own" in own and len(own) > 1:
            yield StateLabels(own["own"], own.get("other", ""), own.get("none", ""))


def _state_sentence(selection: GroupSelection, labels: StateLabels) -> str:
    """Its figures under each state, then the outcomes of the tests."""
    where = f" on average over {len(selection.groups)} blocks" if len(selection.groups) > 1 else ""
    if len(selection.groups) == 1 < len(selection.comparison.groups):
        where = f" on {selection.groups[0].group_key.brief}"
    labelled = [(STATE_NAMES[state], label) for state, label in labels._asdict().items() if label]
    figures = ", ".join(f"{word} {selection.shown(label)}" for word, label in labelled)
    outcome = _outcome(selection, labels)
    tests = [
        f"own is {selection.describe_difference(labels.own, label, STATE_NAMES[state])}"
        for state, label in (("none", labels.none), ("other", labels.other))
        if label
    ]
    told = "" if outcome is MemoryOutcome.UNTESTED else f": {'; '.join(tests)}"
    return f"{labels.own}{where}: {figures}. {outcome.value}{told}."


def _outcome(selection: GroupSelection, labels: StateLabels) -> MemoryOutcome:
    """Outcome of the tests of the own state against the two others."""
    empty, another = (
        _state_outcome(selection, labels.own, labels.none),
        _state_outcome(selection, labels.own, labels.other),
    )
    if empty is None and another is None:
        return MemoryOutcome.UNTESTED
    if empty == -1 or (another == -1 and empty != 1):
        return MemoryOutcome.HURTS
    if another == 1 and (empty == 1 or not labels.none):
        return MemoryOutcome.HOLDS
    if empty == 1 and not labels.other:
        return MemoryOutcome.HELPS
    return MemoryOutcome.PART if 1 in (empty, another) else MemoryOutcome.OPEN


def _state_outcome(selection: GroupSelection, own: str, label: str) -> int | None:
    """The outcome of the test of the own state and another; None where not tested."""
    difference = selection.find_test(own, label) if label else None
    return difference.outcome if difference else None


# --- blocks that a sentence speaks of, numbers as it has them, and what the first lines say of the rest -------------


@dataclass(frozen=True)
class GroupSelection:
    """Blocks of a comparison: one, or several with means over them."""

    comparison: Comparison
    groups: Sequence[ComparisonGroup]

    @property
    def metric(self) -> str:
        """Of the first block: those that are averaged are all fractions, or have one metric."""
        return self.groups[0].group_key.metric

    def rows_of_both(
        self, one: str, other: str
    ) -> list[tuple[ComparisonGroup, MethodRow, MethodRow]]:
        """Two lines, block by block, where both are and neither is set aside."""
        pairs = ((group, group.find_row(one), group.find_row(other)) for group in self.groups)
        return [
            (group, a, b)
            for group, a, b in pairs
            if a is not None and b is not None and not (a.exclusion_reason or b.exclusion_reason)
        ]

    def find_test(self, left: str, right: str) -> Difference | None:
        """The difference of two labels in the one block, or its mean over several; None where it was not tested."""
        groups = (
            [group for group, _, _ in self.rows_of_both(left, right)]
            if len(self.groups) > 1
            else self.groups
        )
        return find_difference(
            groups[0].differences if len(groups) == 1 else self.comparison.overall, left, right
        )

    def end(self, method: str) -> str:
        """The label of floor or ceiling, see `baseline_row`; empty where no block has one."""
        return next(
            (
                method_row.label
                for group in self.groups
                if (method_row := baseline_row(group.method_rows, method))
            ),
            "",
        )

    def shown(self, label: str) -> str:
        """The figure of a line, or its mean over the blocks that have it, for people."""
        return format_without_error(
            self.metric,
            fmean(
                method_row.value for group in self.groups if (method_row := group.find_row(label))
            ),
        )

    def gap(self, left: str, right: str) -> float:
        """The figure of left less that of right, in the mean over the blocks that have both."""
        return fmean(one.value - other.value for _, one, other in self.rows_of_both(left, right))

    def describe_difference(self, left: str, right: str, name: str = "") -> str:
        """What left is of right (`name`): `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled ...`."""
        pairs, tested = self.rows_of_both(left, right), self.find_test(left, right)
        value = tested.value if tested else self.gap(left, right)
        points = " points" * (metric_or_default(self.metric).scale == 100)
        labelled = f"{name or right} ({format_without_error(self.metric, fmean(other.value for _, _, other in pairs))})"
        if tested is None:
            amount = f"{format_without_error(self.metric, abs(value))}{points}"
            return f"{amount} {_comparative(self.metric, value)} {labelled}, untested"
        where = ""
        if {tested.n} != {sum(one.n for _, one, _ in pairs), sum(other.n for _, _, other in pairs)}:
            where = f" (on the {tested.n:,} questions that both were asked)"
        if value == 0 and not (tested.better or tested.worse):
            return f"equal to {labelled} on all {tested.n:,} questions{where}"
        own = tested if value > 0 else tested.with_sides_swapped()
        amount = format_interval(self.metric, own.value, own.ci_low, own.ci_high, points)
        return f"{amount} {_comparative(self.metric, value)} {labelled}{self._significance(tested)}{where}"

    def _significance(self, tested: Difference) -> str:
        if tested.p_holm is None:
            return ": no test can be made"
        p = tested.p_holm
        amount = "<0.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.2g}"
        p_value = f", {'p' if tested.tests == 1 else 'Holm p'} {amount}"
        if tested.is_significant:
            return p_value
        unit = "query" if tested.units == tested.n else tested.unit
        units = [
            (tested.units, UNIT_NAMES[unit]),
            (tested.crossed, CROSSED_UNIT_NAMES[tested.unit]),
        ]
        return f"{p_value}: not settled with {' and '.join(f'{count:,} {word}' for count, word in units if count)}"


def has_single_unit(group: ComparisonGroup) -> bool:
    """Whether what varies is there once (in every sub-task), and has several queries: then errors are too small."""
    clusters: dict[str, Counter[str]] = {}
    for value in (
        value for method_row in group.method_rows for value in method_row.values.values()
    ):
        clusters.setdefault(value.stratum, Counter())[value.cluster] += 1
    several = any(
        count > len(group.method_rows) for own in clusters.values() for count in own.values()
    )
    return several and all(len(own) == 1 for own in clusters.values())


def _comparative(metric: str, value: float) -> str:
    if math.isclose(value, 0.0, abs_tol=1e-12):
        return "from"
    if metric_or_default(metric).higher_is_better:
        return "above" if value > 0 else "below"
    return "better than" if value < 0 else "worse than"


def list_names(names: Sequence[str], noun: str = "others") -> str:
    """`a, b and c`; more than `MAX_LISTED_NAMES` are counted."""
    if len(names) > MAX_LISTED_NAMES:
        return f"{len(names)} {noun}"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def relative_bytes(
    pairs: Sequence[tuple[ComparisonGroup, MethodRow, MethodRow]], other: str
) -> str:
    """Bytes of state of the first against the second: `2.5 % of the bytes of icl`, in the geometric mean over blocks;
    empty where equal, 0 or not known, and under a budget, which counts other bytes than those of states."""
    sides = [
        (one.costs.get("state_bytes"), end.costs.get("state_bytes"))
        for _, one, end in pairs
        if budget_of_config(one.record.config) is None
    ]
    ratios = [math.log(a / b) for a, b in sides if a and b]
    percent = 100 * math.exp(fmean(ratios)) if ratios else 100.0
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return "" if math.isclose(percent, 100) else f"{shown} % of the bytes of {other}"


def caution_sentences(comparison: Comparison) -> Iterator[str]:
    """Where a control fails, where what varies is there once, and what is set aside."""
    for method, end in ((NO_CONTEXT, "floor"), (FULL_CONTEXT, "ceiling")):
        if several := [
            group
            for group in comparison.groups
            if len(baseline_candidates(group.method_rows, method)) > 1
        ]:
            yield f"There are several lines of {method}{_groups_suffix(comparison, several)}, so none of them is the {end}."
    if above := [
        clause for group in comparison.groups for clause in _above_full_context(comparison, group)
    ]:
        yield f"The ceiling may be broken: {list_names(above, 'lines are above it')}. {FULL_CONTEXT_HINT}"
    if weak := [
        group for group in comparison.groups if group.differences and has_single_unit(group)
    ]:
        unit = weak[0].method_rows[0].record.unit
        only = (
            f"There is one {unit} only{_groups_suffix(comparison, weak)}, so errors are too small"
        )
        yield f"{only}: they are over its questions, and another {unit} may differ by more. Run more seeds."
    if untrained := [
        one for one in (*comparison.method_rows, *comparison.excluded) if one.untrained
    ]:
        names = list_names(list(dict.fromkeys(one.label for one in untrained)), "methods")
        yield f"Untrained (no checkpoint): {names}{_groups_suffix(comparison, untrained)}; such figures say nothing of a method."
    for reason in dict.fromkeys(one.exclusion_reason for one in comparison.excluded):
        lines = [one for one in comparison.excluded if one.exclusion_reason == reason]
        names = list_names(list(dict.fromkeys(line.label for line in lines)), "lines")
        yield f"Set aside ({reason}): {names}{_groups_suffix(comparison, lines)}."


def _groups_suffix(comparison: Comparison, where: Sequence[ComparisonGroup | MethodRow]) -> str:
    """In which blocks, where there are several."""
    briefs = list(dict.fromkeys(one.group_key.brief for one in where))
    return f" on {list_names(briefs, 'blocks')}" if len(comparison.groups) > 1 else ""


def _above_full_context(comparison: Comparison, group: ComparisonGroup) -> list[str]:
    """That the ceiling is worse than a line, beyond chance: by the largest difference."""
    full_context = baseline_row(group.method_rows, FULL_CONTEXT)
    difference = (
        [
            find_difference(group.differences, full_context.label, one.label)
            for one in contenders(group.method_rows)
        ]
        if full_context
        else []
    )
    above = min(
        (one for one in difference if one and one.outcome == -1),
        key=lambda one: one.gain,
        default=None,
    )
    where = _groups_suffix(comparison, [group])
    return (
        [
            f"{above.left} is {GroupSelection(comparison, [group]).describe_difference(above.left, above.right)}{where}"
        ]
        if above
        else []
    )
