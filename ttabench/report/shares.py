"""The share of the way from floor to ceiling that a method recovers, where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ttabench.report.compare import Block
from ttabench.report.entries import Entry, ceiling_of, floor_of, share_of_gap
from ttabench.stats.testing import LEVEL

LOST = -10.0
"""A loss of so many times the way has no figure that says more than that the method fails."""
BEYOND = 2.0
"""Where a line goes so many times as far, `icl` is no ceiling, whatever it read: its base may not read so far."""


def share(block: Block, entry: Entry) -> float | None:
    """0 at the floor, 1 at the ceiling; None of these two, and where the ceiling is not above the floor beyond chance.

    Chance is that of the one difference, ceiling less floor, without correction for others.
    """
    floor, ceiling = floor_of(block.entries), ceiling_of(block.entries)
    if floor is None or ceiling is None or entry is floor or entry is ceiling:
        return None
    room = block.between(ceiling.label, floor.label)
    if room is None or room.p is None or room.p >= LEVEL:
        return None
    others = [part for each in block.entries if (part := share_of_gap(each, floor, ceiling)) is not None]
    return share_of_gap(entry, floor, ceiling) if max(others, default=0.0) <= BEYOND else None


def shown_share(part: float | None) -> str:
    """A share for people: `75 %`; empty for None, and "far below" for one that lost more than ten times the way."""
    return "" if part is None else "far below" if part < LOST else f"{100 * part:.0f} %"


def recovered(blocks: Sequence[Block], label: str) -> tuple[float | None, int]:
    """(share of the way, blocks it is over) of a line: the mean of its gains over the mean of the gaps.

    All blocks count in which floor, ceiling and the line were asked alike, those in which it lost, too.
    """
    gains, gaps = [], []
    for block in blocks:
        floor, ceiling, entry = floor_of(block.entries), ceiling_of(block.entries), block.named(label)
        if floor and ceiling and entry and share_of_gap(entry, floor, ceiling) is not None:
            gains.append(entry.worth - floor.worth)
            gaps.append(ceiling.worth - floor.worth)
    return (fmean(gains) / fmean(gaps) if gaps and fmean(gaps) > 0 else None), len(gaps)
