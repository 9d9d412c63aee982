"""Who leads, which pairs of a block are tested and shown, and their differences, p adjusted within their family.

That a method is better than none is one question, that it loses something against icl another one: each is a family of
tests, and the many pairs of methods with each other make neither of them harder to answer.

none      a line against the floor: is it better than nothing?
icl       a line against the ceiling: does it lose something?
room      the ceiling against the floor: is there something to be gained?
state     a line under its own state, another text's and an empty one
others    all other pairs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from itertools import count as count_up
from statistics import fmean
from typing import Literal, NamedTuple

from ttabench.report.entries import Entry, ceiling_of, floor_of, running
from ttabench.stats.clusters import Observed
from ttabench.stats.estimate import (
    LEVEL,
    SIGN,
    Apart,
    detectable,
    holm,
    needed,
    paired_difference,
    stratified,
    unanimous,
)
from ttabench.stats.figures import Unit
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
    second: str
    """The best of another method, else of another setting; empty where there is none."""
    blocks: tuple[int, ...]
    """Places of the blocks that count."""
    averaged: bool
    """Whether the order is that of means; else of mean ranks."""
    left_out: tuple[str, ...] = ()
    """Lines that were not run in all of these blocks."""

    @property
    def leader(self) -> str:
        """The first."""
        return self.order[0]


def standing_of(blocks: Sequence[Sequence[Entry]]) -> Standing | None:
    """The order of lines that are running; None where nothing is. Lines of several blocks are ranked on blocks that all
    of them share: those that many share, so that lines times blocks is largest. The order is that of their means where
    values can be averaged, else of their mean ranks; of equal ones those with fewer bytes of state come first. Values
    alone choose; what is said of them rests on the tests."""
    lines: dict[str, dict[int, Entry]] = {}
    for place, entries in enumerate(blocks):
        for entry in running(entries):
            lines.setdefault(entry.label, {})[place] = entry
    if not lines:
        return None

    def size(own: tuple[int, ...]) -> tuple[bool, int, int]:
        alike = sum(set(own) <= other.keys() for other in lines.values())
        return alike > 1, alike * len(own), len(own)

    shared = max(dict.fromkeys(map(tuple, lines.values())), key=size)
    ranked = {label: [own[place] for place in shared] for label, own in lines.items() if set(shared) <= own.keys()}
    averaged = can_be_averaged([entry.metric for entry in next(iter(ranked.values()))])

    def rank(place: int, entry: Entry) -> float:  # 1 for the best; the mean of their places for equal ones
        values = [own[place].worth for own in lines.values() if place in own]
        return sum(value > entry.worth for value in values) + (values.count(entry.worth) + 1) / 2

    def key(label: str) -> tuple[float, float, str]:
        own = ranked[label]
        first = -fmean(one.worth for one in own) if averaged else fmean(map(rank, shared, own))
        return first, fmean(one.costs.get("state_bytes") or 0.0 for one in own), label

    leader, *rest = order = sorted(ranked, key=key)
    others = [label for label in rest if ranked[label][0].method != ranked[leader][0].method]
    return Standing(order=tuple(order), second=next(iter([*others, *rest]), ""), blocks=shared, averaged=averaged,
                    left_out=tuple(label for label in lines if label not in ranked))  # fmt: skip


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
    if one.state_of != other.state_of and one.configured == other.configured:
        return "state"
    if not ends or one.aside or other.aside or "own" != one.state_of == other.state_of:
        return "others"
    return "none" if entries[ends[0]] is floor_of(entries) else "icl"


def chosen(entries: Sequence[Entry], standing: Standing | None, *, every: bool = False) -> list[Pair]:
    """Pairs that are tested: all of at most four entries, or of any number if `every`. Of more: the ceiling (the floor
    where there is none) and the best against each; floor, ceiling and the leader against each that is running; a line
    under its states. The floor stands right, then the ceiling; the best left, then the leader; the own state first."""
    ends, kept = _ends(entries), running(entries)
    places = range(len(entries))
    lines = [place for place in places if any(entries[place] is line for line in kept)]
    most = max((line.worth for line in kept), default=0.0)
    leader = [place for place in lines if standing and entries[place].label == standing.leader]
    most_worth = [place for place in lines if entries[place].worth == most]
    rivals = {place for place in places if standing and entries[place].label in (standing.leader, standing.second)}
    best = ([place for place in most_worth if place in rivals] or most_worth)[:1]
    pairs, many = list(combinations(places, 2)), not every and len(entries) > FEW
    if many:
        pairs = [(anchor, other) for anchor in ([*ends[-1:], *best] or [0]) for other in places]
        pairs += [(anchor, other) for anchor in (*ends, *leader) for other in (*ends, *lines)]
        pairs += [pair for pair in combinations(places, 2) if family_of(entries, pair) == "state"]

    def turned(pair: Pair) -> Pair:
        right = [] if family_of(entries, pair) == "state" else ends[::-1]
        leads = [] if rivals.issuperset(pair) else leader
        one, other = sorted(pair, key=lambda at: (
            1 + right.index(at) if at in right else -many * (2 * (at in best) + (at in leads)), at
        ))  # fmt: skip
        return one, other

    return list(dict.fromkeys(turned(pair) for pair in pairs if pair[0] != pair[1]))


def _ends(entries: Sequence[Entry]) -> list[int]:
    """Places of the floor, then the ceiling."""
    ends = (floor_of(entries), ceiling_of(entries))
    return [place for end in ends if end for place, entry in enumerate(entries) if entry is end]


@dataclass(frozen=True, kw_only=True)
class Difference(Apart):
    """`left` minus `right` on the queries both answered, with what `stats.estimate` says of it."""

    left: str
    right: str
    task: str
    block: str
    metric: str
    n: int
    p_holm: float | None = None
    """p, adjusted for all tests of its family, shown or not."""
    family: Family = "others"
    """See above."""
    tests: int = 1
    """How many tests its family has."""
    better: int | None = None
    """Queries on which left is better; of right and wrong answers, those that became right."""
    worse: int | None = None
    blocks: int = 1
    """Over how many blocks it is the mean."""

    @property
    def detectable(self) -> float | None:
        """The smallest true difference that such a test finds four times in five; None where no two figures can differ
        so much."""
        smallest = None if self.stderr is None else detectable(self.stderr, self.freedom)
        return smallest if smallest is not None and smallest <= known(self.metric).kind.figure.span else None

    @property
    def beyond_chance(self) -> bool:
        """Whether it stays below 5 % once it is adjusted for its family."""
        return self.p_holm is not None and self.p_holm < LEVEL

    @property
    def gain(self) -> float:
        """The value, so that more is better for left."""
        return self.value if known(self.metric).higher_is_better else -self.value

    @property
    def outcome(self) -> int | None:
        """1 where left is better beyond chance, -1 where right is, 0 where neither is; None where no test was made."""
        if self.p_holm is None:
            return None
        return (1 if self.gain > 0 else -1) if self.beyond_chance else 0

    def turned(self) -> Difference:
        """Right less left."""
        low, high = (None if end is None else -end for end in (self.ci_high, self.ci_low))
        return replace(self, left=self.right, right=self.left, value=-self.value, ci_low=low, ci_high=high,
                       better=self.worse, worse=self.better)  # fmt: skip

    @property
    def more_across(self) -> bool:
        """Whether what else varies makes the larger part of the error."""
        return self.shares[1] > self.shares[0]

    @property
    def needed(self) -> int | None:
        """Of what makes the larger part of the error: how many would find a true difference of this size four times in
        five; None for any number."""
        if self.test == SIGN:
            return next(count for count in count_up(self.units) if unanimous(count) < LEVEL / self.tests)
        if not self.stderr or not self.value:
            return None
        count, fixed = (self.across if self.more_across else self.units), max(0.0, 1 - max(self.shares))
        return needed(self.value, self.stderr, self.freedom, count, level=LEVEL / self.tests, fixed=fixed)


class Unpaired(NamedTuple):
    """Two entries of a block without a difference, and why."""

    block: str
    left: str
    right: str
    reason: str


def difference(left: Entry, right: Entry) -> Difference | None:
    """Of the queries that both answered; None where there is none, or a figure of them is no number."""
    shared = [query for query in left.values if query in right.values]
    sides = [[line.values[query] for query in shared] for line in (left, right)]
    apart = paired_difference(known(left.metric).kind, sides) if shared else None
    if apart is None:
        return None
    worths = [[worth(value, left.metric) for value in side] for side in sides]
    gains = [one - other for one, other in zip(*worths, strict=True) if one is not None and other is not None]
    better, worse = (sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)) if gains else (None, None)
    return Difference(**vars(apart), left=left.label, right=right.label, task=left.place.task, block=left.place.name,
                      metric=left.metric, n=len(shared), better=better, worse=worse)  # fmt: skip


def between(differences: Iterable[Difference], left: str, right: str) -> Difference | None:
    """The difference of two labels, turned as they are named; None where it is not there."""
    one = next((one for one in differences if {one.left, one.right} == {left, right}), None)
    return one if one is None or one.left == left else one.turned()


def overall(differences: Sequence[Difference]) -> Difference | None:
    """The mean of the differences of two lines over blocks; see `estimate.stratified`. A block whose difference shows
    no error counts with none where all that varies agrees, and not at all where there is a single unit."""
    erring = [one for one in differences if one.stderr is not None or one.units > 1]
    if not erring or not can_be_averaged([one.metric for one in erring]):
        return None
    first = erring[0]
    mean = stratified([(one.task, one) for one in erring], known(first.metric).kind.figure.span)
    flips = [(one.better, one.worse) for one in erring if one.better is not None and one.worse is not None]
    better, worse = (sum(side) for side in zip(*flips, strict=True)) if flips else (None, None)
    return replace(first, **vars(mean), task="", block="", p_holm=None, n=sum(one.n for one in erring),
                   blocks=len(erring), better=better, worse=worse)  # fmt: skip


def worth(value: object, metric: str) -> float | None:
    """A query's term, so that more is better; None of figures that no query has by itself."""
    if isinstance(value, Observed):
        return value.terms[0] if known(metric).higher_is_better else -value.terms[0]
    return -value.nll if isinstance(value, Unit) else None


def unpaired(entries: Sequence[Entry]) -> Iterator[Unpaired]:
    """Every pair of a block without a query that both answered."""
    for left, right in combinations(entries, 2):
        if left.values.keys().isdisjoint(right.values.keys()):
            yield Unpaired(block=left.place.name, left=left.label, right=right.label, reason=_why(left, right))


def _why(one: Entry, other: Entry) -> str:
    """Why two lines of a block share no query."""
    left, right, seeds = one.values, other.values, (one.seeds, other.seeds)
    if not left or not right:
        return "the answers are not kept"
    if not {*seeds[0]} & {*seeds[1]}:
        return f"other seeds ({' and '.join(','.join(map(str, own)) for own in seeds)})"
    if any(isinstance(value, Unit) for value in left.values()):
        return "no stretch of text was scored by both with one base and tokenizer"
    if {query[:3] for query in left} & {query[:3] for query in right}:
        return "other questions or answers under the same keys: other data, or another version of them"
    return "other queries"


def counted(entries: Sequence[Entry]) -> Counter[Family]:
    """How many tests each family of a block could have: all pairs that have a common query."""
    pairs = combinations(range(len(entries)), 2)
    return Counter(family_of(entries, (one, other)) for one, other in pairs
                   if not entries[one].values.keys().isdisjoint(entries[other].values))  # fmt: skip


def adjusted(differences: Sequence[Difference], counts: Mapping[Family, int]) -> list[Difference]:
    """The same differences, in order, with Holm's p within each family of so many tests as it could have."""
    holms: dict[int, Difference] = {}
    for family in {difference.family for difference in differences}:
        places = [place for place, difference in enumerate(differences) if difference.family == family]
        tests = max(counts.get(family, 0), len(places))
        for place, p in zip(places, holm([differences[place].p for place in places], tests), strict=True):
            holms[place] = replace(differences[place], p_holm=p, tests=tests)
    return [holms[place] for place in range(len(differences))]


def means(
    counting: Sequence[Sequence[Difference]], blocks: Sequence[Sequence[Difference]], order: Sequence[str]
) -> list[Difference]:
    """Means over blocks with Holm's p, families of their own: of what was tested in each of the blocks that count for
    the standing (its labels in order), and of states in all blocks."""
    lines = len(order)
    counts: dict[Family, int] = {"none": lines, "icl": lines, "room": 1, "others": lines * (lines - 1) // 2}
    kinds: tuple[Family, ...] = ("room", "none", "icl", "others") if order else ("room",)
    differences = [*_alike(counting, kinds, order), *_alike(blocks, ("state",), ())]
    return adjusted([mean for alike in differences if (mean := overall(alike)) is not None], counts)


def _alike(
    blocks: Sequence[Sequence[Difference]], families: Sequence[Family], order: Sequence[str]
) -> Iterator[list[Difference]]:
    """The differences of each pair in several blocks, turned alike."""
    by_pair: dict[tuple[Family, frozenset[str]], list[Difference]] = {}
    for difference in (difference for block in blocks for difference in block):
        labels = frozenset((difference.left, difference.right))
        ends = {"room": 2, "none": 1, "icl": 1}.get(difference.family, 0)
        if difference.family not in families or (order and len(labels & set(order)) < 2 - ends):
            continue
        if difference.family == "others" and order[0] not in labels:
            continue
        own = by_pair.setdefault((difference.family, labels), [])
        own.append(difference if not own or own[0].left == difference.left else difference.turned())
    yield from (alike for alike in by_pair.values() if len(alike) > 1)
