"""Which pairs of a block are tested and shown, and which tests are one family.

none      a line against the floor: is it better than nothing?
icl       a line against the ceiling: does it lose something?
room      the ceiling against the floor: is there something to be gained?
state     a line under its own state, another text's and an empty one
others    all other pairs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Literal

from ttabench.report.entries import Entry, ceiling_of, floor_of, running
from ttabench.report.standings import Standing, leading
from ttabench.run.config import STATES_OF

Family = Literal["none", "icl", "room", "state", "others"]
FAMILIES: tuple[Family, ...] = ("room", "none", "icl", "state", "others")
FEW = 4
"""Entries of a block of which every pair is shown."""
Pair = tuple[int, int]
"""Places of two entries of a block, left and right."""


def family_of(entries: Sequence[Entry], pair: Pair) -> Family:
    """The family of the test of two entries of a block."""
    one, other = (entries[place] for place in pair)
    floor, ceiling = floor_of(entries), ceiling_of(entries)
    ends = [end for end in (one, other) if end is floor or end is ceiling]
    if len(ends) == 2:
        return "room"
    if one.state_of != other.state_of and of_one(one, other):
        return "state"
    if not ends or one.aside or other.aside or "own" != one.state_of == other.state_of:
        return "others"
    return "none" if ends[0] is floor else "icl"


def of_one(one: Entry, other: Entry) -> bool:
    """Whether two entries are of one configuration, each under another state."""
    return one.method == other.method and one.configured == other.configured


def shown(entries: Sequence[Entry], standing: Standing | None, *, every: bool) -> list[Pair]:
    """Pairs that are shown: all of at most four entries, or of any number if `every`.

    Of more: each against the ceiling (the floor where there is none), the best against each, those the first line
    is about against each other and the floor, and a line under its states. The floor stands right, then the ceiling;
    the best of many stands left; else the order is that given.
    """
    ends = _ends(entries)
    if every or len(entries) <= FEW:
        return _ordered(entries, combinations(range(len(entries)), 2), [])
    rivals = {standing.leader, standing.second} if standing else set()
    named = [place for place, entry in enumerate(entries) if entry.label in rivals]
    best = sorted(_place(entries, entry) for entry in leading(entries))
    best = [place for place in named if place in best][:1] or best[:1]
    anchors = [*ends[-1:], *best] or [0]
    pairs = [(anchor, other) for anchor in anchors for other in range(len(entries)) if other != anchor]
    return _ordered(entries, [*pairs, *combinations(sorted({*named, *ends}), 2), *_states(entries)], best)


def tested(entries: Sequence[Entry], standing: Standing | None) -> list[Pair]:
    """Pairs that sentences need: each line against the floor and the ceiling, the leader against each, states."""
    lines = [_place(entries, entry) for entry in running(entries)]
    first = [place for place in lines if standing and entries[place].label == standing.leader]
    ends = _ends(entries)
    pairs = [(anchor, other) for anchor in (*ends, *first) for other in (*ends, *lines) if other != anchor]
    return _ordered(entries, [*pairs, *_states(entries)], first)


def _ordered(entries: Sequence[Entry], pairs: Iterator[Pair] | Sequence[Pair], best: Sequence[int]) -> list[Pair]:
    """Each once, left before right; the own state before others."""
    ends = _ends(entries)

    def rank(place: int) -> Pair:
        return (1 + ends[::-1].index(place) if place in ends else -(place in best)), place

    def turned(pair: Pair) -> Pair:
        of_states = family_of(entries, pair) == "state"
        left, right = sorted(pair, key=(lambda place: _state(entries[place])) if of_states else rank)
        return left, right

    return list(dict.fromkeys(map(turned, pairs)))


def _state(entry: Entry) -> int:
    return list(STATES_OF).index(entry.state_of)


def _states(entries: Sequence[Entry]) -> list[Pair]:
    return [pair for pair in combinations(range(len(entries)), 2) if family_of(entries, pair) == "state"]


def _ends(entries: Sequence[Entry]) -> list[int]:
    """The floor, then the ceiling."""
    return [_place(entries, end) for end in (floor_of(entries), ceiling_of(entries)) if end is not None]


def _place(entries: Sequence[Entry], entry: Entry) -> int:
    return next(place for place, other in enumerate(entries) if other is entry)
