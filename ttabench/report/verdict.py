"""The first line of a comparison: who leads, and what of it is beyond chance; by rules, from the tests alone.

    streamadapter beats snapkv on 5 of 6 tasks at about a quarter of the bytes; no difference beyond chance on piqa

"Beats", "above" and "below" are said where Holm's p over all pairs is below 5 %, and nowhere else. Whom the line
is about is chosen by values (`headline`). Bytes are those of states, by their geometric mean over the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ttabench.core.render import size
from ttabench.report import figures
from ttabench.report.cautions import lone
from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import Entry, ceiling_of, floor_of
from ttabench.report.headline import running
from ttabench.report.shares import share

FRACTIONS = {2: "half", 3: "a third of", 4: "a quarter of", 5: "a fifth of", 10: "a tenth of"}
MANY = 3
"""So many blocks are named; of more they are counted."""


def verdict(found: Comparison) -> str:
    """One line in plain words, without a full stop."""
    weak = [block for block in found.blocks if block.differences and lone(block)]
    unit = weak[0].groups[0].record.unit if weak else ""
    caution = f"; with one {unit} only on {_where(weak)}, errors are too small" if weak else ""
    return _said(found) + caution


def _said(found: Comparison) -> str:
    if found.rivals is None:
        return _of_ends(found.blocks)
    leader, second = found.rivals.leader, found.rivals.second
    own = [block for block in found.blocks if named(block, leader)]
    where = f"On {own[0].place.brief}: " if len(own) == 1 < len(found.blocks) else ""
    if swapped := [block for block in own if _another(block, leader)]:
        return where + _of_states(swapped, leader)
    if not second:
        return where + _of_one_method(own, leader)
    return where + _of_one_block(own[0], leader) if len(own) == 1 else _of_rivals(own, leader, second)


def outcome(block: Block, left: str, right: str) -> int | None:
    """1 where left is better beyond chance, -1 where right is, 0 where neither is; None where no test was made."""
    for each in block.differences:
        if {each.left, each.right} == {left, right} and each.p_holm is not None:
            sign = 1 if (each.gain > 0) == (each.left == left) else -1
            return sign if each.beyond_chance else 0
    return None


def named(block: Block, label: str) -> Entry | None:
    """The entry of that label."""
    return next((entry for entry in block.entries if entry.label == label), None)


def _noun(blocks: Sequence[Block]) -> str:
    noun = "task" if len({block.place.task for block in blocks}) == len(blocks) else "block"
    return noun if len(blocks) == 1 else f"{noun}s"


def _where(blocks: Sequence[Block]) -> str:
    return ", ".join(block.place.brief for block in blocks) if len(blocks) <= MANY else f"{len(blocks)} {_noun(blocks)}"


def _another(block: Block, leader: str) -> Entry | None:
    """The entry of the same method under another context's state, where that method is all that was running."""
    own = named(block, leader)
    alone = own is not None and all(entry.method == own.method for entry in running(block.entries))
    others = (entry for entry in block.entries if own and entry.method == own.method and entry.state_of == "other")
    return next(others, None) if alone else None


def _of_states(blocks: Sequence[Block], leader: str) -> str:
    """A method under its own state and under another context's."""
    found = [outcome(block, leader, other.label) for block in blocks if (other := _another(block, leader))]
    entry = named(blocks[0], leader)
    assert entry is not None, "blocks that were chosen have it"
    if all(how is None for how in found):
        return f"{entry.method}: no test of its own state against another's could be made"
    where = "" if len(found) == 1 else f" on {found.count(1)} of {len(found)} {_noun(blocks)}"
    if 1 in found:
        return (
            f"The own state of {entry.method} is better than another context's{where}: memory, and not practice alone"
        )
    return f"The own state of {entry.method} is not better than another context's beyond chance: no memory is shown"


def _of_rivals(blocks: Sequence[Block], leader: str, second: str) -> str:
    """Two methods over several blocks."""
    both = [block for block in blocks if named(block, second)]
    won, level, lost, untested = (
        [block for block in both if outcome(block, leader, second) == how] for how in (1, 0, -1, None)
    )
    if len(untested) == len(both):
        why = "no test could be made"
        return f"{leader} has the best mean rank over {len(both)} {_noun(both)}, then {second}; {why}"
    if won:
        told = [f"{leader} beats {second} on {len(won)} of {len(both)} {_noun(both)}{_bytes(both, leader, second)}"]
    else:
        told = [f"{leader} and {second} lead{_bytes(both, leader, second, leader)}"]
    if lost:
        told.append(f"{second} beats {leader} on {_where(lost)}")
    if level:
        where = f"any of {len(both)} {_noun(both)}" if len(level) == len(both) > 1 else _where(level)
        told.append(f"no difference between them beyond chance on {where}")
    if untested:
        told.append(f"not paired on {_where(untested)}")
    return "; ".join([*told, *_between(both, leader)])


def _of_one_block(block: Block, leader: str) -> str:
    """All methods of one block."""
    others = [entry.label for entry in running(block.entries) if entry.label != leader]
    best = named(block, leader)
    assert best is not None, "the leader of one block stands in it"
    found = {label: outcome(block, leader, label) for label in others}
    told = f"{leader} has the best {best.metric}, {figures.plain(best.metric, best.value)}"
    if all(how is None for how in found.values()):
        return f"{told}, of {len(others) + 1} methods; no test could be made"
    behind, rest = ([label for label in others if (found[label] == 1) == ahead] for ahead in (True, False))
    if len(others) == 1:
        how = f"and beats {others[0]}" if behind else f"but no difference from {others[0]} is beyond chance"
        told += f", {how}{_bytes([block], leader, others[0])}"
    elif behind:
        told += f", and beats {', '.join(behind) if len(behind) <= MANY else f'{len(behind)} of {len(others)} others'}"
        told += f"; no difference from {_listed(rest)} is beyond chance" if rest else ""
    else:
        told += f"; no difference from the {len(others)} others is beyond chance"
    return "; ".join([told, *_between([block], leader)])


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= MANY else f"the other {len(labels)}"


def _of_one_method(blocks: Sequence[Block], leader: str) -> str:
    """A method between floor and ceiling."""
    if told := _between(blocks, leader):
        tops = {top.label for block in blocks if (top := ceiling_of(block.entries))}
        kept = _bytes(blocks, leader, min(tops)) if len(tops) == 1 else ""
        return "; ".join([*told, *([f"it keeps{kept.removeprefix(' at')} of {min(tops)}"] if kept else [])])
    if any(len(block.entries) > 1 for block in blocks):
        return f"{leader}: no test could be made"
    return f"{leader}: nothing to compare it with"


def _between(blocks: Sequence[Block], label: str) -> list[str]:
    """Where a method stands between floor and ceiling: in how many blocks above, below, and how much of the gap."""
    told = []
    for end, sign, word in ((floor_of, 1, "above the floor"), (ceiling_of, -1, "below the ceiling")):
        tested = [outcome(block, label, other.label) for block in blocks if (other := end(block.entries))]
        if any(how is not None for how in tested):
            told.append(_count(word, tested.count(sign), sum(how is not None for how in tested), _noun(blocks)))
    if not told:
        return []
    above = [block for block in blocks if (low := floor_of(block.entries)) and outcome(block, label, low.label) == 1]
    shares = [part for block in above if (entry := named(block, label)) and (part := share(block, entry)) is not None]
    there = "there " if len(shares) < len(blocks) else ""
    closed = [f"{there}it closes {_range(shares)} % of the gap"] if shares else []
    return [f"{label} is {' and '.join(told)}", *closed]


def _count(word: str, hits: int, tested: int, noun: str) -> str:
    if tested == 1:
        return word if hits else f"not {word} beyond chance"
    return f"{word} on {hits} of {tested} {noun}"


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{100 * end(shares):.0f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _bytes(blocks: Sequence[Block], one: str, other: str, subject: str = "") -> str:
    """` at about a quarter of the bytes`, or `, one at ...` where the subject has to be said; empty where equal."""
    sides = [(named(block, one), named(block, other)) for block in blocks]
    kept = [(a.costs.get("state_bytes"), b.costs.get("state_bytes")) for a, b in sides if a and b]
    pairs = [(a, b) for a, b in kept if a is not None and b is not None]
    begin = f", {subject}" if subject else ""
    if all(a == b for a, b in pairs):
        return ""
    if any(a == 0 or b == 0 for a, b in pairs):
        ours, theirs = (fmean(side) for side in zip(*pairs, strict=True))
        return f"{begin} at {size(ours)} of state against {size(theirs)}"
    return f"{begin} at {_times(math.exp(fmean(math.log(a / b) for a, b in pairs)))} bytes"


def _times(ratio: float) -> str:
    inverse = 1 / ratio
    if 0.95 < ratio < 1.05:
        return "about as many"
    if 2 / 3 < ratio < 1.5:
        return f"{100 * ratio:.0f} % of the"
    if ratio > 1:
        return f"{ratio:.{0 if ratio >= 10 else 1}f} times the"
    words = FRACTIONS.get(round(inverse))
    return f"about {words} the" if words else f"1/{inverse:.0f} of the"


def _of_ends(blocks: Sequence[Block]) -> str:
    """Floor and ceiling alone, or runs of one configuration."""
    ends = [(block, floor, ceiling) for block in blocks
            if (floor := floor_of(block.entries)) and (ceiling := ceiling_of(block.entries))]  # fmt: skip
    found = [outcome(block, ceiling.label, floor.label) for block, floor, ceiling in ends]
    if not ends:
        return "One configuration a block: nothing to compare" if len(blocks) > 1 else "Nothing to compare"
    if all(how is None for how in found):
        return "No method between none and icl; no test could be made"
    gaps = [block for (block, *_), how in zip(ends, found, strict=True) if how == 1]
    where = "" if len(ends) == 1 else f" on {len(gaps)} of {len(ends)} {_noun([each[0] for each in ends])}"
    if len(ends) == 1 and not gaps:
        return "No gap for a method to close: icl is not above none beyond chance"
    return f"A gap for a method to close: icl is above none beyond chance{where}"
