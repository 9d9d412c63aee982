"""Memory of the context: tests of a method's own state against a swapped and an empty state.

A method that is better under its own state than under no state may have gained from practice with
the format alone. It remembers the context only if it is also better than under the state of
another context (`eval --swap-state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ttabench.report.compare import Comparison, ComparisonGroup
from ttabench.report.differences import Difference, have_mean
from ttabench.report.group_selection import GroupSelection


class MemoryOutcome(Enum):
    """Outcome of the tests of one method's own state, adjusted for all tests of states."""

    REMEMBERS = "yes"
    """Own state better than swapped, and better than empty where that was run."""
    HELPS = "no swapped state"
    """Own state better than empty; a swapped state was not run."""
    PARTLY = "partly"
    """Own state better than one of the two others."""
    NOT_SIGNIFICANT = "not significant"
    WORSE = "worse"
    """Own state worse than one of the two others."""
    UNTESTED = "not tested"


@dataclass(frozen=True)
class MemoryTest:
    """One configuration under its states, in one comparison group or averaged over several."""

    selection: GroupSelection
    own: str
    """Labels of the rows under the own, a swapped and an empty state; empty if not run."""
    swapped: str
    empty: str

    @property
    def swapped_difference(self) -> Difference | None:
        """Own state minus swapped state; None if not tested."""
        return self.selection.find_test(self.own, self.swapped) if self.swapped else None

    @property
    def empty_difference(self) -> Difference | None:
        """Own state minus empty state; None if not tested."""
        return self.selection.find_test(self.own, self.empty) if self.empty else None

    @property
    def outcome(self) -> MemoryOutcome:
        """Outcome of the two tests."""
        swapped, empty = _sign(self.swapped_difference), _sign(self.empty_difference)
        if swapped is None and empty is None:
            return MemoryOutcome.UNTESTED
        if empty == -1 or (swapped == -1 and empty != 1):
            return MemoryOutcome.WORSE
        if swapped == 1 and (empty == 1 or not self.empty):
            return MemoryOutcome.REMEMBERS
        if empty == 1 and not self.swapped:
            return MemoryOutcome.HELPS
        return MemoryOutcome.PARTLY if 1 in (swapped, empty) else MemoryOutcome.NOT_SIGNIFICANT


def _sign(difference: Difference | None) -> int | None:
    return difference.outcome if difference else None


def memory_tests(
    comparison: Comparison, groups: Sequence[ComparisonGroup] | None = None
) -> list[MemoryTest]:
    """Return a test for each configuration that was run under its own and another state.

    Groups are averaged; where their metrics have no common mean, each group has its own test.
    """
    groups_of_labels: dict[tuple[str, str, str], list[ComparisonGroup]] = {}
    for group in comparison.groups if groups is None else groups:
        states: dict[str, dict[str, str]] = {}
        for row in group.method_rows:
            states.setdefault(row.configuration_key, {})[row.state_of] = row.label
        for own in states.values():
            if "own" in own and len(own) > 1:
                labels = own["own"], own.get("other", ""), own.get("none", "")
                groups_of_labels.setdefault(labels, []).append(group)
    tests = []
    for labels, alike in groups_of_labels.items():
        averaged = have_mean([group.group_key.metric for group in alike])
        selections = [alike] if averaged else [[group] for group in alike]
        tests += [MemoryTest(GroupSelection(comparison, own), *labels) for own in selections]
    return tests
