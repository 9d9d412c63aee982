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
from typing import Any, TypeAlias

from ttabench.report.compare import Comparison, ComparisonGroup, recovered_over_groups
from ttabench.report.differences import Ranking, have_mean
from ttabench.report.group_selection import (
    GroupSelection,
    has_single_unit,
    list_names,
    relative_bytes,
)
from ttabench.report.groups import BASELINES
from ttabench.report.memory import memory_tests
from ttabench.report.method_rows import MethodRow, baseline_candidates, contenders
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


Facts: TypeAlias = dict[str, Any]
Rules: TypeAlias = Sequence[tuple[str, str]]
"""Sentences, each with the fact that it needs. The first one with a known fact is used."""
LEADER: Rules = (
    ("no_mean", "The {no_mean} comparison groups have no common mean: read each by itself."),
    ("improvement", "Baselines only: {icl} ({icl_value}) is {improvement}."),
    ("unranked", "No ranking: no two methods share a task, a source and a base model."),
    ("leads", "{leader} leads with {mean} {value}{where}, {lead}."),
    ("lead", "No row leads significantly{where}: {leader} has the best {mean}, {value}, {lead}."),
)
AGAINST_BASELINES: Rules = (
    ("is_beyond", "{name} reaches the full-context baseline: {gaps}."),
    (
        "share",
        "{name} recovers {share} % of the improvement of {icl} over {none}{in_groups}{kept}"
        " and is {gaps}.",
    ),
    ("gaps", "{name} is {gaps}."),
)
MEMORY: Rules = (
    ("counts", "Memory of the context: {counts}."),
    ("outcome", "Memory of the context: {outcome}; {own} is {states}."),
)


def make_verdict(comparison: Comparison) -> Verdict:
    """Return the verdict of a comparison."""
    facts = _memory_facts(comparison)
    ranking = comparison.ranking
    facts |= _ranked_facts(comparison, ranking) if ranking else _unranked_facts(comparison)
    known = [
        [text for fact, text in rules if facts.get(fact)]
        for rules in (LEADER, AGAINST_BASELINES, MEMORY)
    ]
    return Verdict(
        leader=facts.get("leader", ""),
        leads=bool(facts.get("leads")),
        recovered=facts.get("recovered"),
        sentences=tuple(texts[0].format_map(facts) for texts in known if texts),
        notes=tuple(_notes(comparison)),
    )


def _ranked_facts(comparison: Comparison, ranking: Ranking) -> Facts:
    """Return value and place of the leader, and its differences from other rows and baselines.

    The difference from `none` is left out if the leader recovers a share of the improvement.
    """
    groups = [comparison.groups[place] for place in ranking.groups]
    (leader, *others), second, several = ranking.order, ranking.second, len(groups)
    selection = GroupSelection(comparison, groups)
    tests = [selection.find_test(leader, label) for label in others]
    tests += [
        test.swapped_difference
        for test in memory_tests(comparison, groups)
        if test.own == leader and test.swapped
    ]
    mean, value = "mean" if several > 1 else selection.metric, selection.shown(leader)
    where = f" over {several} comparison groups ({len(ranking.order)} of {ranking.lines} rows)"
    if several == 1:
        where = "" if len(comparison.groups) == 1 else f" on {groups[0].group_key.brief}"
    (none, icl), (share, count) = _baselines(selection), _recovered(selection, leader)
    shared = {label: selection.rows_of_both(leader, label) for label in (none, icl)}
    kept = relative_bytes(shared[icl], icl)
    gaps = [
        selection.describe_difference(leader, label)
        for label in ((none, icl) if share is None else (icl,))
        if shared[label]
    ]
    return {
        "leader": leader,
        "leads": second and all(test is not None and test.outcome == 1 for test in tests),
        "lead": second and selection.describe_difference(leader, second),
        "mean": mean,
        "value": value,
        "where": where,
        "name": "It" if second else f"{leader} ({mean} {value})",
        "none": none,
        "icl": icl,
        "gaps": "; ".join(gaps),
        "recovered": share,
        "share": "" if share is None else f"{100 * share:.0f}",
        "is_beyond": share is not None and share > 1,
        "in_groups": "" if count == several else f" in {count} of {several} groups",
        "kept": f", with {kept}," if kept else "",
    }


def _baselines(selection: GroupSelection) -> tuple[str, str]:
    none, icl = map(selection.baseline, BASELINES)
    return none, icl


def _recovered(selection: GroupSelection, leader: str) -> tuple[float | None, int]:
    """Return (share, number of groups) that the leader recovers of the improvement of `icl`.

    None unless full context and the leader are both significantly better than no context.
    """
    none, icl = _baselines(selection)
    gap, gain = selection.find_test(icl, none), selection.find_test(leader, none)
    gains = gain is not None and gain.outcome == 1
    if gains and gap and gap.p is not None and gap.p < SIGNIFICANCE_LEVEL and gap.gain > 0:
        return recovered_over_groups(selection.groups, leader)
    return None, 0


def _unranked_facts(comparison: Comparison) -> Facts:
    """Return the difference of the two baselines, if there is no method to rank."""
    if not have_mean([group.group_key.metric for group in comparison.groups]):
        return {"no_mean": len(comparison.groups)}
    selection = GroupSelection(comparison, comparison.groups)
    none, icl = _baselines(selection)
    shared = selection.rows_of_both(icl, none)
    if not shared:
        return {"unranked": True}
    selection = GroupSelection(comparison, [group for group, _, _ in shared])
    average = " on average" if len(shared) > 1 else ""
    return {
        "icl": icl,
        "icl_value": selection.shown(icl) + average,
        "improvement": selection.describe_difference(icl, none),
    }


def _memory_facts(comparison: Comparison) -> Facts:
    """Return the outcome of one test of states with its differences, or counts of several."""
    tests = memory_tests(comparison)
    if len(tests) != 1:
        counts = Counter(test.outcome.value for test in tests).most_common()
        return {"counts": ", ".join(f"{count} {outcome}" for outcome, count in counts)}
    (test,) = tests
    states = {"its swapped state": test.swapped, "its empty state": test.empty}
    clauses = [
        test.selection.describe_difference(test.own, label, name)
        for name, label in states.items()
        if label
    ]
    return {"outcome": test.outcome.value, "own": test.own, "states": "; ".join(clauses)}


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield a note for each baseline that may be wrong, and for single units, untrained and excluded rows."""
    groups = comparison.groups
    for method, name in zip(BASELINES, ("no-context", "full-context"), strict=True):
        if several := [
            group for group in groups if len(baseline_candidates(group.method_rows, method)) > 1
        ]:
            where = _groups_suffix(comparison, several)
            yield f"Several rows of {method}{where}: none is used as the {name} baseline."
    if above := [clause for group in groups for clause in _above_full_context(comparison, group)]:
        clauses = list_names(above, "rows are above it")
        yield f"The full-context baseline may be wrong: {clauses}. {FULL_CONTEXT_HINT}"
    if weak := [group for group in groups if group.differences and has_single_unit(group)]:
        unit = weak[0].method_rows[0].record.unit
        where = _groups_suffix(comparison, weak)
        yield (
            f"Only one {unit}{where}: errors are over its questions and too small for another {unit}."
            " Run more seeds."
        )
    excluded = comparison.excluded
    if untrained := [row for row in (*comparison.method_rows, *excluded) if row.untrained]:
        where, names = _groups_suffix(comparison, untrained), _names(untrained, "methods")
        yield f"Untrained (no checkpoint){where}: {names}. Train them before you compare them."
    for reason in dict.fromkeys(row.exclusion_reason for row in excluded):
        rows = [row for row in excluded if row.exclusion_reason == reason]
        yield f"Excluded ({reason}): {_names(rows, 'rows')}{_groups_suffix(comparison, rows)}."


def _names(method_rows: Sequence[MethodRow], noun: str) -> str:
    return list_names(list(dict.fromkeys(row.label for row in method_rows)), noun)


def _groups_suffix(comparison: Comparison, where: Sequence[ComparisonGroup | MethodRow]) -> str:
    """Name the groups, if there are several."""
    briefs = list(dict.fromkeys(one.group_key.brief for one in where))
    return f" in {list_names(briefs, 'groups')}" if len(comparison.groups) > 1 else ""


def _above_full_context(comparison: Comparison, group: ComparisonGroup) -> list[str]:
    """Describe the row that is significantly better than full context, by the largest difference."""
    ranked = {row.label for row in contenders(group.method_rows)}
    above = [
        one
        for one in group.differences
        if one.family == "icl" and one.outcome == 1 and one.left in ranked
    ]
    if not above:
        return []
    best = max(above, key=lambda one: one.gain)
    difference = GroupSelection(comparison, [group]).describe_difference(best.right, best.left)
    return [f"{best.right} is {difference}{_groups_suffix(comparison, [group])}"]
