"""The share of the gap from floor to ceiling that a method closes, where there is a gap."""

from __future__ import annotations

from ttabench.report.compare import Block
from ttabench.report.entries import Entry, ceiling_of, floor_of, share_of_gap
from ttabench.stats.testing import LEVEL

BEYOND = 2.0
"""Where an entry goes so many times as far, `icl` is no ceiling: its window holds a part of what was read."""


def share(block: Block, entry: Entry) -> float | None:
    """0 at the floor, 1 at the ceiling; None of these two, and where the ceiling is not above the floor beyond chance.

    Chance is that of the one difference, ceiling less floor, without correction for others.
    """
    floor, ceiling = floor_of(block.entries), ceiling_of(block.entries)
    if floor is None or ceiling is None or entry is floor or entry is ceiling:
        return None
    room = next((each for each in block.differences if {each.left, each.right} == {floor.label, ceiling.label}), None)
    if room is None or room.p is None or room.p >= LEVEL:
        return None
    others = [found for each in block.entries if (found := share_of_gap(each, floor, ceiling)) is not None]
    return share_of_gap(entry, floor, ceiling) if max(others, default=0.0) <= BEYOND else None
