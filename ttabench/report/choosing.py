"""Which pairs of a block are tested and shown, which tests are one family, and who leads.

none      a line against the floor: is it better than nothing?
icl       a line against the ceiling: does it lose something?
room      the ceiling against the floor: is there something to be gained?
state     a line under its own state, another text's and an empty one
others    all other pairs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Literal

from ttabench.report.entries import Entry, ceiling_of, floor_of, running
from ttabench.run.config import STATES_OF
from ttabench.stats.metrics import known

Family = Literal["none", "icl", "room", "state", "others"]
FEW = 4
"""Entries of a block of which every pair is shown."""
Pair = tuple[int, int]
"""Places of two entries of a block, left and right."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The order of lines over the blocks that they share."""

    order: tuple[str, ...]
    """Labels, the best first; at least one."""
    methods: Mapping[str, str]
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


def standing_of(blocks: Sequence[Sequence[Entry]]) -> Standing | None:
    """The order of lines that are running; None where nothing is. Lines of several blocks are ranked on blocks that all
    of them share: those that many share, so that lines times blocks is largest. The order is that of their means where
    values can be averaged, else of their mean ranks; of equal ones those with fewer bytes of state come first. Values
    alone choose; what is said of them rests on the tests."""
    entries_of_blocks = [{entry.label: entry for entry in running(entries)} for entries in blocks]
    labels = dict.fromkeys(label for own in entries_of_blocks for label in own)
    places = {label: tuple(place for place, own in enumerate(entries_of_blocks) if label in own) for label in labels}
    if not places:
        return None

    def size(own: tuple[int, ...]) -> tuple[bool, int, int]:
        lines = sum(set(own) <= set(other) for other in places.values())
        return lines > 1, lines * len(own), len(own)

    shared = max(dict.fromkeys(places.values()), key=size)
    ranked = [label for label in places if set(shared) <= set(places[label])]
    averaged = can_be_averaged([next(iter(entries_of_blocks[place].values())).metric for place in shared])

    def key(label: str) -> tuple[float, float, str]:
        own = [entries_of_blocks[place][label] for place in shared]
        ranks = [_rank(entry, entries_of_blocks[place].values()) for place, entry in zip(shared, own, strict=True)]
        first = -fmean(entry.worth for entry in own) if averaged else fmean(ranks)
        return first, fmean(entry.costs.get("state_bytes") or 0.0 for entry in own), label

    return Standing(
        order=tuple(sorted(ranked, key=key)), blocks=shared, averaged=averaged,
        methods={label: entries_of_blocks[own[0]][label].method for label, own in places.items()},
        left_out={label: own for label, own in places.items() if label not in ranked},
    )  # fmt: skip


def _rank(entry: Entry, others: Iterable[Entry]) -> float:
    """1 for the best; the mean of their places for equal ones."""
    values = [other.worth for other in others]
    return sum(value > entry.worth for value in values) + (values.count(entry.worth) + 1) / 2


def can_be_averaged(metrics: Sequence[str]) -> bool:
    """Whether a mean over blocks says something: of fractions, or of one metric; not of perplexities, of which the
    largest decides."""
    if len(metrics) == 1 or all(known(metric).scale == 100 for metric in metrics):
        return True
    return len(set(metrics)) == 1 and not metrics[0].startswith("ppl")


def family_of(entries: Sequence[Entry], pair: Pair) -> Family:
    """The family of the test of two entries of a block."""
    one, other = (entries[place] for place in pair)
    ends = [place for place in _ends(entries) if place in pair]
    if len(ends) == 2:
        return "room"
    if one.state_of != other.state_of and one.group.configured == other.group.configured:
        return "state"
    if not ends or one.aside or other.aside or "own" != one.state_of == other.state_of:
        return "others"
    return "none" if entries[ends[0]] is floor_of(entries) else "icl"


def shown(entries: Sequence[Entry], standing: Standing | None, *, every: bool) -> list[Pair]:
    """Pairs that are shown: all of at most four entries, or of any number if `every`. Of more: each against the ceiling
    (the floor where there is none), the best against each, those the first line is about against each other and the
    floor, and a line under its states. The floor stands right, then the ceiling; the best of many stands left; else the
    order is that given."""
    if every or len(entries) <= FEW:
        return _ordered(entries, combinations(range(len(entries)), 2), [])
    ends, lines = _ends(entries), running(entries)
    rivals = {standing.leader, standing.second} if standing else set()
    named = [place for place, entry in enumerate(entries) if entry.label in rivals]
    best = [place for place, entry in enumerate(entries)
            if any(entry is line for line in lines) and entry.worth == max(line.worth for line in lines)]  # fmt: skip
    best = [place for place in named if place in best][:1] or best[:1]
    anchors = [*ends[-1:], *best] or [0]
    pairs = [(anchor, other) for anchor in anchors for other in range(len(entries)) if other != anchor]
    return _ordered(entries, [*pairs, *combinations(sorted({*named, *ends}), 2), *_states(entries)], best)


def tested(entries: Sequence[Entry], standing: Standing | None) -> list[Pair]:
    """Pairs that sentences need: each line against the floor and the ceiling, the leader against each, states."""
    kept = running(entries)
    lines = [place for place, entry in enumerate(entries) if any(entry is line for line in kept)]
    first = [place for place in lines if standing and entries[place].label == standing.leader]
    ends = _ends(entries)
    pairs = [(anchor, other) for anchor in (*ends, *first) for other in (*ends, *lines) if other != anchor]
    return _ordered(entries, [*pairs, *_states(entries)], first)


def _ordered(entries: Sequence[Entry], pairs: Iterable[Pair], best: Sequence[int]) -> list[Pair]:
    """Each once, left before right; the own state before others."""
    ends, states = _ends(entries), list(STATES_OF)

    def turned(pair: Pair) -> Pair:
        of_states = family_of(entries, pair) == "state"
        left, right = sorted(pair, key=lambda place: (
            states.index(entries[place].state_of) if of_states
            else 1 + ends[::-1].index(place) if place in ends else -(place in best),
            0 if of_states else place,
        ))  # fmt: skip
        return left, right

    return list(dict.fromkeys(map(turned, pairs)))


def _states(entries: Sequence[Entry]) -> list[Pair]:
    return [pair for pair in combinations(range(len(entries)), 2) if family_of(entries, pair) == "state"]


def _ends(entries: Sequence[Entry]) -> list[int]:
    """Places of the floor, then the ceiling."""
    ends = (floor_of(entries), ceiling_of(entries))
    return [place for end in ends if end for place, entry in enumerate(entries) if entry is end]
