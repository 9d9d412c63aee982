"""Whom the first line of a comparison is about: the two labels that lead, and how they are chosen.

Candidates are all entries but floor and ceiling that answered under their own state. Labels that stand in the most
blocks are ranked in each by their value; the two with the best mean rank are the rivals, of equal ones those with
fewer bytes of state. Where no label stands in two blocks, the block with the most candidates has the two. The choice
looks at values alone; what is said of it rests on the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ttabench.report.entries import Entry, candidates


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """The leader, and the second where there is one."""

    leader: str
    second: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that are there."""
        return (self.leader, self.second) if self.second else (self.leader,)


def running(entries: Sequence[Entry]) -> list[Entry]:
    """Candidates that answered under their own state."""
    return [entry for entry in candidates(entries) if entry.state_of == "own"]


def leading(entries: Sequence[Entry]) -> list[Entry]:
    """The best of those that are running; all that are equally good."""
    found = running(entries)
    return [entry for entry in found if entry.worth == max(each.worth for each in found)]


def rivals_of(blocks: Sequence[Sequence[Entry]]) -> Rivals | None:
    """The two that lead; None where there is no candidate."""
    ranks: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    for entries in blocks:
        values = [entry.worth for entry in running(entries)]
        for entry in running(entries):
            better, equal = sum(value > entry.worth for value in values), values.count(entry.worth)
            ranks.setdefault(entry.label, []).append(better + (equal + 1) / 2)
            sizes.setdefault(entry.label, []).append(entry.costs.get("state_bytes") or 0.0)
    if not ranks:
        return None
    most = max(map(len, ranks.values()))
    largest = {entry.label for entry in max(map(running, blocks), key=len)}
    order = sorted(
        (label for label in ranks if len(ranks[label]) == most and (most > 1 or label in largest)),
        key=lambda label: (fmean(ranks[label]), fmean(sizes[label]), label),
    )
    return Rivals(leader=order[0], second=order[1] if len(order) > 1 else "")
