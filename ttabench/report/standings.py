"""Who leads a comparison: which blocks count for it, the order of the lines there, and who was left out.

Running are all lines but floor, ceiling and what is set aside, under their own state. Lines of several blocks are
ranked on blocks that all of them share: those blocks that many share, so that lines times blocks is largest. The order
is that of their means where values can be averaged (fractions, or one metric), else of their mean ranks; of equal ones
those with fewer bytes of state come first. The choice looks at values alone; what is said of it rests on the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ttabench.report.entries import Entry, running
from ttabench.report.figures import scale


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The order of lines over the blocks that they share."""

    order: tuple[str, ...]
    """Labels, the best first; at least one."""
    methods: Mapping[str, str]
    """The method of each."""
    blocks: tuple[int, ...]
    """Places of the blocks that count."""
    averaged: bool
    """Whether the order is that of means; else of mean ranks."""
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Lines that were not run in all of these blocks, and places of the blocks in which they were."""

    @property
    def leader(self) -> str:
        """The first."""
        return self.order[0]

    @property
    def second(self) -> str:
        """The best of another method, else of another setting; empty where there is none."""
        others = [label for label in self.order[1:] if self.methods[label] != self.methods[self.leader]]
        return next(iter([*others, *self.order[1:]]), "")


def leading(entries: Sequence[Entry]) -> list[Entry]:
    """The best of those that are running; all that are equally good."""
    running_entries = running(entries)
    return [entry for entry in running_entries if entry.worth == max(candidate.worth for candidate in running_entries)]


def standing_of(blocks: Sequence[Sequence[Entry]]) -> Standing | None:
    """The order of lines; None where nothing is running."""
    entries_of_blocks = [{entry.label: entry for entry in running(entries)} for entries in blocks]
    places: dict[str, tuple[int, ...]] = {}
    for label in dict.fromkeys(label for own in entries_of_blocks for label in own):
        places[label] = tuple(place for place, own in enumerate(entries_of_blocks) if label in own)
    if not places:
        return None
    shared = _shared(places)
    ranked = [label for label in places if set(shared) <= set(places[label])]
    averaged = can_be_averaged([next(iter(entries_of_blocks[place].values())).metric for place in shared])

    def key(label: str) -> tuple[float, float, str]:
        own = [entries_of_blocks[place][label] for place in shared]
        worth = -fmean(entry.worth for entry in own)
        rank = fmean(
            _rank(entry, list(entries_of_blocks[place].values())) for place, entry in zip(shared, own, strict=True)
        )
        return worth if averaged else rank, fmean(entry.costs.get("state_bytes") or 0.0 for entry in own), label

    return Standing(
        order=tuple(sorted(ranked, key=key)), blocks=shared, averaged=averaged,
        methods={label: entries_of_blocks[own[0]][label].method for label, own in places.items()},
        left_out={label: own for label, own in places.items() if label not in ranked},
    )  # fmt: skip


def can_be_averaged(metrics: Sequence[str]) -> bool:
    """Whether a mean over blocks says something: of fractions, or of one metric; not of perplexities, of which the
    largest decides."""
    if len(metrics) == 1 or all(scale(metric) == 100 for metric in metrics):
        return True
    return len(set(metrics)) == 1 and not metrics[0].startswith("ppl")


def _shared(places: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Of the blocks of each line those that most lines share, by lines times blocks; of equal ones the most blocks."""

    def size(own: tuple[int, ...]) -> tuple[bool, int, int]:
        lines = sum(set(own) <= set(other) for other in places.values())
        return lines > 1, lines * len(own), len(own)

    return max(dict.fromkeys(places.values()), key=size)


def _rank(entry: Entry, others: Sequence[Entry]) -> float:
    """1 for the best; the mean of their places for equal ones."""
    values = [other.worth for other in others]
    return sum(value > entry.worth for value in values) + (values.count(entry.worth) + 1) / 2
