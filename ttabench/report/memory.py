"""Memory of the context: tests of a method's own state against a swapped and an empty state.

A method that is better under its own state than under no state may have gained from practice with
the format alone. It remembers the context only if it is also better than under the state of
another context (`eval --swap-state`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ttabench.report.compare import Comparison, ComparisonGroup
from ttabench.report.differences import Difference, have_mean
from ttabench.report.group_selection import GroupSelection
from ttabench.report.method_rows import MethodRow


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


def memory_tests(comparison: Comparison) -> list[MemoryTest]:
    """Return a test for each configuration that was run under its own and another state.

    Groups are averaged; where their metrics have no common mean, each group has its own test.
    """
    groups_of_labels: dict[tuple[str, str, str], list[ComparisonGroup]] = {}
    for group in comparison.groups:
        for labels in _state_labels(group.method_rows):
            groups_of_labels.setdefault(labels, []).append(group)
    tests = []
    for labels, groups in groups_of_labels.items():
        averaged = have_mean([group.group_key.metric for group in groups])
        selections = [groups] if averaged else [[group] for group in groups]
        tests += [MemoryTest(GroupSelection(comparison, own), *labels) for own in selections]
    return tests


def _state_labels(method_rows: Sequence[MethodRow]) -> Iterator[tuple[str, str, str]]:
    """Yield the labels of each configuration under its own, a swapped and an empty state."""
    labels: dict[str, dict[str, str]] = {}
    for method_row in method_rows:
        labels.setdefault(method_row.configuration_key, {})[method_row.state_of] = method_row.label
    for states in labels.values():
        if "own" in states and len(states) > 1:
            yield states["own"], states.get("other", ""), states.get("none", "")


def beats_swapped_state(selection: GroupSelection, label: str) -> bool:
    """Return True if a row is significantly better than under a swapped state, or was not run so."""
    swapped = {
        labels[1]
        for group in selection.groups
        for labels in _state_labels(group.method_rows)
        if labels[0] == label and labels[1]
    }
    return all(_sign(selection.find_test(label, other)) == 1 for other in swapped)
