"""The verdict of a comparison: at most three sentences before the tables, and notes after them.

mac leads with f1 65.6, 21.9 points [2.6, 41.8] above snapkv (43.7), p 0.01.
It recovers 75 % of the improvement of icl over none, with 2.5 % of the state bytes of icl, and is
    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09, not significant (64 questions).
Memory of the context: 1 yes, 2 not significant.

The rows are selected by their values; statements on differences use the tests of `differences`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ttabench.report.compare import Comparison, ComparisonGroup, recovered_over_groups
from ttabench.report.differences import Ranking, find_difference, have_mean
from ttabench.report.group_selection import (
    GroupSelection,
    has_single_unit,
    list_names,
    relative_bytes,
)
from ttabench.report.groups import FULL_CONTEXT, NO_CONTEXT
from ttabench.report.memory import MemoryTest, beats_swapped_state, memory_tests
from ttabench.report.method_rows import MethodRow, baseline_candidates, baseline_row, contenders
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL

FULL_CONTEXT_HINT = (
    "Check its prompt, whether the context was cut, and whether the base model can use a context"
    " of this length."
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a comparison."""

    leader: str = ""
    """Label of the row with the best value; empty if rows cannot be ranked."""
    leads: bool = False
    """True if the leader is significantly better than every other row, and than its swapped state."""
    recovered: float | None = None
    """Share of the improvement of `icl` over `none` that the leader recovers, 0 to 1 or more."""
    sentences: tuple[str, ...] = ()
    """At most three, with their full stops."""
    notes: tuple[str, ...] = ()
    """Rows that are excluded or untrained, and baselines that may be wrong."""

    def __str__(self) -> str:
        return " ".join(self.sentences)


def make_verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of a comparison."""
    ranking, groups = comparison.ranking, comparison.groups
    memory = _memory_sentence(memory_tests(comparison))
    notes = tuple(_notes(comparison))
    if ranking is None:
        if not have_mean([group.group_key.metric for group in groups]):
            first = f"The {len(groups)} comparison groups have no common mean: read each by itself."
        else:
            first = _baselines_alone(GroupSelection(comparison, groups))
        return Verdict(sentences=tuple(filter(None, [first, memory])), notes=notes)
    selection = GroupSelection(comparison, [groups[place] for place in ranking.groups])
    leads = _leads(selection, ranking)
    recovered, baselines = _baseline_sentence(selection, ranking)
    sentences = [_leader_sentence(selection, ranking, leads=leads), baselines, memory]
    return Verdict(
        leader=ranking.order[0],
        leads=leads,
        recovered=recovered,
        sentences=tuple(filter(None, sentences)),
        notes=notes,
    )


def _leads(selection: GroupSelection, ranking: Ranking) -> bool:
    """Return True if the leader is significantly better than all other rows, and than its swapped state."""
    leader, *others = ranking.order
    tests = [selection.find_test(leader, label) for label in others]
    better = [test is not None and test.outcome == 1 for test in tests]
    return bool(others) and all(better) and beats_swapped_state(selection, leader)


def _leader_sentence(selection: GroupSelection, ranking: Ranking, *, leads: bool) -> str:
    """Describe the leader: its value, and its difference from the second row. Empty without one."""
    leader, second = ranking.order[0], ranking.second
    if not second:
        return ""
    where = _ranked_groups(selection, ranking)
    mean = "mean" if len(selection.groups) > 1 else selection.metric
    value = selection.shown(leader)
    difference = selection.describe_difference(leader, second)
    if leads:
        return f"{leader} leads with {mean} {value}{where}, {difference}."
    return (
        f"No row leads significantly{where}: {leader} has the best {mean}, {value}, {difference}."
    )


def _ranked_groups(selection: GroupSelection, ranking: Ranking) -> str:
    """Name the groups that count, if there are several."""
    if len(selection.comparison.groups) == 1:
        return ""
    if len(selection.groups) == 1:
        return f" on {selection.groups[0].group_key.brief}"
    rows = f"{len(ranking.order)} of {ranking.lines} rows"
    return f" over {len(selection.groups)} comparison groups ({rows})"


def _baseline_sentence(selection: GroupSelection, ranking: Ranking) -> tuple[float | None, str]:
    """Compare the leader with the baselines. Returns the recovered share, if any, and the sentence."""
    leader = ranking.order[0]
    labels = [selection.baseline(method) for method in (NO_CONTEXT, FULL_CONTEXT)]
    no_context, full_context = (
        label if label and selection.rows_of_both(leader, label) else "" for label in labels
    )
    share, groups = recovered_over_groups(selection.groups, leader)
    if share is not None and not (no_context and full_context and _improves(selection, leader)):
        share = None
    clauses = [
        selection.describe_difference(leader, label)
        for label in (no_context, full_context)
        if label and (share is None or label == full_context)
    ]
    mean = "mean" if len(selection.groups) > 1 else selection.metric
    name = "It" if ranking.second else f"{leader} ({mean} {selection.shown(leader)})"
    if share is None:
        return None, f"{name} is {'; '.join(clauses)}." if clauses else ""
    if share > 1:
        return share, f"{name} reaches the full-context baseline: {clauses[0]}."
    several = len(selection.groups)
    where = "" if groups == several else f" in {groups} of {several} groups"
    relative = relative_bytes(selection.rows_of_both(leader, full_context), full_context)
    kept = f", with {relative}," if relative else ""
    improvement = f"{100 * share:.0f} % of the improvement of {full_context} over {no_context}"
    return share, f"{name} recovers {improvement}{where}{kept} and is {clauses[0]}."


def _improves(selection: GroupSelection, leader: str) -> bool:
    """Return True if full context and the leader are both significantly better than no context."""
    no_context, full_context = selection.baseline(NO_CONTEXT), selection.baseline(FULL_CONTEXT)
    baselines = selection.find_test(full_context, no_context)
    gain = selection.find_test(leader, no_context)
    if baselines is None or baselines.p is None or gain is None:
        return False
    return baselines.p < SIGNIFICANCE_LEVEL and baselines.gain > 0 and gain.outcome == 1


def _baselines_alone(selection: GroupSelection) -> str:
    """Compare the two baselines, if there is no method to rank."""
    no_context, full_context = selection.baseline(NO_CONTEXT), selection.baseline(FULL_CONTEXT)
    shared = selection.rows_of_both(full_context, no_context) if no_context and full_context else []
    if not shared:
        return "No ranking: no two methods share a task, a source and a base model."
    selection = GroupSelection(selection.comparison, [group for group, _, _ in shared])
    mean = " on average" if len(selection.groups) > 1 else ""
    difference = selection.describe_difference(full_context, no_context)
    return (
        f"Baselines only: {full_context} ({selection.shown(full_context)}{mean}) is {difference}."
    )


def _memory_sentence(tests: Sequence[MemoryTest]) -> str:
    """Summarize the tests of states: the outcome of one, or counts of several."""
    if not tests:
        return ""
    if len(tests) > 1:
        counts = Counter(test.outcome for test in tests).most_common()
        return f"Memory of the context: {', '.join(f'{count} {outcome.value}' for outcome, count in counts)}."
    (test,) = tests
    clauses = [
        test.selection.describe_difference(test.own, label, name)
        for label, name in ((test.swapped, "its swapped state"), (test.empty, "its empty state"))
        if label
    ]
    return f"Memory of the context: {test.outcome.value}; {test.own} is {'; '.join(clauses)}."


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield a note for each baseline that may be wrong, and for single units, untrained and excluded rows."""
    for method, name in ((NO_CONTEXT, "no-context"), (FULL_CONTEXT, "full-context")):
        if several := [
            group
            for group in comparison.groups
            if len(baseline_candidates(group.method_rows, method)) > 1
        ]:
            where = _groups_suffix(comparison, several)
            yield f"Several rows of {method}{where}: none is used as the {name} baseline."
    if above := [
        clause for group in comparison.groups for clause in _above_full_context(comparison, group)
    ]:
        rows = list_names(above, "rows are above it")
        yield f"The full-context baseline may be wrong: {rows}. {FULL_CONTEXT_HINT}"
    if weak := [
        group for group in comparison.groups if group.differences and has_single_unit(group)
    ]:
        unit = weak[0].method_rows[0].record.unit
        where = _groups_suffix(comparison, weak)
        yield (
            f"Only one {unit}{where}: errors are over its questions and too small for another {unit}."
            " Run more seeds."
        )
    if untrained := [
        row for row in (*comparison.method_rows, *comparison.excluded) if row.untrained
    ]:
        names = list_names(list(dict.fromkeys(row.label for row in untrained)), "methods")
        where = _groups_suffix(comparison, untrained)
        yield f"Untrained (no checkpoint){where}: {names}. Train them before you compare them."
    for reason in dict.fromkeys(row.exclusion_reason for row in comparison.excluded):
        rows_of_reason = [row for row in comparison.excluded if row.exclusion_reason == reason]
        names = list_names(list(dict.fromkeys(row.label for row in rows_of_reason)), "rows")
        yield f"Excluded ({reason}): {names}{_groups_suffix(comparison, rows_of_reason)}."


def _groups_suffix(comparison: Comparison, where: Sequence[ComparisonGroup | MethodRow]) -> str:
    """Name the groups, if there are several."""
    briefs = list(dict.fromkeys(one.group_key.brief for one in where))
    return f" in {list_names(briefs, 'groups')}" if len(comparison.groups) > 1 else ""


def _above_full_context(comparison: Comparison, group: ComparisonGroup) -> list[str]:
    """Describe the row that is significantly better than full context, by the largest difference."""
    full_context = baseline_row(group.method_rows, FULL_CONTEXT)
    if full_context is None:
        return []
    tests = [
        find_difference(group.differences, full_context.label, row.label)
        for row in contenders(group.method_rows)
    ]
    worse = [test for test in tests if test and test.outcome == -1]
    if not worse:
        return []
    test = min(worse, key=lambda one: one.gain)
    difference = GroupSelection(comparison, [group]).describe_difference(test.left, test.right)
    return [f"{test.left} is {difference}{_groups_suffix(comparison, [group])}"]
