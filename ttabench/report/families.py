"""Tests that are one family (`choosing`): their p values by Holm, and the mean of each test over several blocks.

That a method is better than none is one question, that it loses something against icl another one: each has its own
tests, and the many pairs of methods with each other make neither of them harder to answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ttabench.report.choosing import Family, family_of
from ttabench.report.differences import Difference, Unpaired, overall
from ttabench.report.entries import Entry
from ttabench.stats.testing import holm


def counted(entries: Sequence[Entry], unpaired: Sequence[Unpaired]) -> Counter[Family]:
    """How many tests each family of a block could have: all pairs that have a common query."""
    apart = {frozenset((each.left, each.right)) for each in unpaired}
    pairs = combinations(range(len(entries)), 2)
    return Counter(
        family_of(entries, pair)
        for pair in pairs if frozenset(entries[place].label for place in pair) not in apart
    )  # fmt: skip


def adjusted_by_family(differences: Sequence[Difference], counts: Mapping[Family, int]) -> list[Difference]:
    """The same differences, in order, with Holm's p within each family.

    Args:
        differences: those that were tested.
        counts: how many tests each family could have, where those tested were chosen among more.
    """
    adjusted: dict[int, Difference] = {}
    for family in {difference.family for difference in differences}:
        own = [(place, difference) for place, difference in enumerate(differences) if difference.family == family]
        tests = max(counts.get(family, 0), len(own))
        for (place, difference), p in zip(own, holm([difference.p for _, difference in own], tests), strict=True):
            adjusted[place] = replace(difference, p_holm=p, tests=tests)
    return [adjusted[place] for place in range(len(differences))]


def means(
    counting: Sequence[Sequence[Difference]], blocks: Sequence[Sequence[Difference]], order: Sequence[str]
) -> list[Difference]:
    """Means over blocks with Holm's p: families of their own.

    Args:
        counting: what was tested in each of the blocks that count for the standing.
        blocks: the same of all blocks, for states.
        order: labels of the standing, the leader first.
    """
    lines = len(order)
    counts: dict[Family, int] = {"none": lines, "icl": lines, "room": 1, "others": lines * (lines - 1) // 2}
    kinds: tuple[Family, ...] = ("room", "none", "icl", "others") if order else ("room",)
    differences = [*_alike(counting, kinds, order), *_alike(blocks, ("state",), ())]
    return adjusted_by_family([mean for alike in differences if (mean := overall(alike)) is not None], counts)


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
