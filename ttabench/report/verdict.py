"""The first lines of a comparison: who leads and by how much, what is not settled, and what does not count; by rules.

    mac (65.6) is 65.6 points [43.5, 80.0] above none (0.0), p <0.001; 21.9 points [-0.6, 41.8] below icl (87.5) ...
    It recovers 75 % of the way from none to icl, and keeps 2.5 % of the bytes of icl.
    templora: own state 78.1, another text's 74.7, an empty one 100.0. Its state does not help here: own is 21.9 ...

Whom they are about is chosen by values, what is said of differences rests on the tests (`differences`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from ttabench.report.compare import Block, Comparison, recovered
from ttabench.report.differences import Standing, can_be_averaged
from ttabench.report.entries import Entry, ceiling_of, floor_of
from ttabench.report.phrases import Field, cautions, kept_bytes, listed
from ttabench.stats.estimate import LEVEL

BESIDE = {1: "better than", -1: "worse than", 0: "not settled against", None: "not tested against"}
STATES = {"own": "own state", "other": "another text's", "none": "an empty one"}


class Outcome(Enum):
    """Outcome of the tests of a method's own state.

    Better is what the paired tests say, adjusted for all tests of states. What is better than one of the two others
    only may have gained from practice with such texts.
    """

    HOLDS = "Its state helps, and it holds this text"
    HELPS = "Its state helps; whether it holds this text, another text's state would say"
    PART = "Its state helps in part; that it holds this text is not shown"
    OPEN = "Its state is not shown to help here"
    HURTS = "Its state does not help here"
    UNTESTED = "No test of its state can be made"


class Swapped(NamedTuple):
    """The labels of one configuration under its states; empty where one was not run."""

    own: str
    other: str
    none: str


def verdict(comparison: Comparison) -> str:
    """All sentences in one line."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> list[str]:
    """The first lines: each a sentence or more, with their full stops."""
    blocks, standing = comparison.blocks, comparison.standing
    first = list(_state_sentences(comparison))
    if standing is not None:
        field = Field(comparison, [blocks[place] for place in standing.blocks])
        led = [*_lead(field, standing), *_against_ends(field, standing)]
        # of one method under several states these are the question
        first = [*first, *led] if len(standing.order) == 1 else [*led, *first]
    elif not can_be_averaged([block.place.metric for block in blocks]):
        first.insert(0, f"Values of these {len(blocks)} blocks have no mean: each block stands for itself.")
    else:
        first += _of_ends(Field(comparison, blocks))
    return [*(first or ["Nothing to compare."]), *cautions(comparison)]


def _lead(field: Field, standing: Standing) -> Iterator[str]:
    """The leader and the second, and the leader against all others."""
    leader, second = standing.leader, standing.second
    if not second:
        return
    best, tested, several = field.shown(leader), field.pair(leader, second), len(field.blocks) > 1
    equal = math.isclose(field.gap(leader, second), 0.0, abs_tol=1e-12)
    leads = tested and tested.outcome is not None and not equal and _above_another(field, leader)
    first = f"{leader} {'leads with' if leads else 'has'} the best {'mean' if several else field.metric}, {best}"
    by_outcome: dict[int | None, list[str]] = {outcome: [] for outcome in BESIDE}
    for label in standing.order:
        if label not in (leader, second):
            by_outcome[apart.outcome if (apart := field.pair(leader, label)) else None].append(label)
    clauses = [f"{BESIDE[outcome]} {listed(labels)}" for outcome, labels in by_outcome.items() if labels]
    parts = [f"{_where(field, standing)}{first}, {field.apart(leader, second)}"]
    parts += [f"It is {'; '.join(clauses)}"] if clauses else []
    yield ". ".join(parts) + "."


def _where(field: Field, standing: Standing) -> str:
    """Which blocks count, where there are several."""
    if len(field.found.blocks) == 1:
        return ""
    if len(field.blocks) == 1:
        return f"On {field.blocks[0].place.brief}, "
    return f"On the {len(field.blocks)} blocks that {len(standing.order)} of {standing.lines} lines share, "


def _against_ends(field: Field, standing: Standing) -> Iterator[str]:
    """The leader against floor and ceiling, and how much of the way between them it goes."""
    leader, several = standing.leader, len(field.blocks) > 1
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    ends = [end for end in (floor, ceiling) if end and field.both(leader, end)]
    if not ends:
        return
    clauses = "; ".join(field.apart(leader, end) for end in ends)
    where = "" if standing.second else _where(field, standing)
    yield f"{where}{leader} ({field.shown(leader)}{' on average' * several}) is {clauses}."
    yield from _recovery(field, leader, floor, ceiling)


def _recovery(field: Field, leader: str, floor: str, ceiling: str) -> Iterator[str]:
    """The share of the way from floor to ceiling, over all blocks that have both, lost ones too."""
    if not floor or not ceiling or not field.both(ceiling, floor):
        return
    part, blocks = recovered(field.blocks, leader)
    room, gain = field.pair(ceiling, floor), field.pair(leader, floor)
    if room is None or room.p is None:
        return
    if room.p >= LEVEL or room.gain < 0:
        yield f"There is no gap to recover: {ceiling} ({field.shown(ceiling)}) is {field.apart(ceiling, floor)}."
    elif part is not None and gain is not None and gain.beyond_chance:  # no share where they were not asked alike
        where = "" if blocks == len(field.blocks) else f" on {blocks} of {len(field.blocks)} blocks"
        at = kept_bytes(field.both(leader, ceiling), ceiling)
        kept = f", and keeps {at}" if at else ""
        yield f"It recovers {round(100 * part) + 0:d} % of the way from {floor} to {ceiling}{where}{kept}."


def _of_ends(field: Field) -> Iterator[str]:
    """Floor and ceiling alone."""
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    if floor and ceiling and field.both(ceiling, floor):
        mean = " on average" * (len(field.blocks) > 1)
        head = f"No method between {floor} and {ceiling}: {ceiling} ({field.shown(ceiling)}{mean}) is"
        yield f"{head} {field.apart(ceiling, floor)}."


def _state_sentences(comparison: Comparison) -> Iterator[str]:
    """One for each configuration that was run under its own state and another one; where values cannot be averaged one
    a block."""
    places: dict[Swapped, list[Block]] = {}
    for block in comparison.blocks:
        for swapped in _swapped(block.entries):
            places.setdefault(swapped, []).append(block)
    for swapped, blocks in places.items():
        alike = can_be_averaged([block.place.metric for block in blocks])
        yield from (_state_sentence(Field(comparison, own), swapped)
                    for own in ([blocks] if alike else [[block] for block in blocks]))  # fmt: skip


def _above_another(field: Field, label: str) -> bool:
    """Whether a line is better under its own state than under another text's, beyond chance, or was not run so."""
    others = {swapped.other for block in field.blocks for swapped in _swapped(block.entries) if swapped.own == label}
    return all(_beside(field, label, other) == 1 for other in others if other)


def _swapped(entries: Sequence[Entry]) -> Iterator[Swapped]:
    labels: dict[str, dict[str, str]] = {}
    for entry in entries:
        labels.setdefault(entry.configured, {})[entry.state_of] = entry.label
    for own in labels.values():
        if "own" in own and len(own) > 1:
            yield Swapped(own["own"], own.get("other", ""), own.get("none", ""))


def _state_sentence(field: Field, labels: Swapped) -> str:
    """Its figures under each state, then the outcomes of the tests."""
    where = f" on average over {len(field.blocks)} blocks" if len(field.blocks) > 1 else ""
    if len(field.blocks) == 1 < len(field.found.blocks):
        where = f" on {field.blocks[0].place.brief}"
    named = [(STATES[state], label) for state, label in labels._asdict().items() if label]
    figures = ", ".join(f"{word} {field.shown(label)}" for word, label in named)
    outcome = _outcome(field, labels)
    tests = [f"own is {field.apart(labels.own, label, STATES[state])}"
             for state, label in (("none", labels.none), ("other", labels.other)) if label]  # fmt: skip
    told = "" if outcome is Outcome.UNTESTED else f": {'; '.join(tests)}"
    return f"{labels.own}{where}: {figures}. {outcome.value}{told}."


def _outcome(field: Field, labels: Swapped) -> Outcome:
    """Outcome of the tests of the own state against the two others."""
    empty, another = _beside(field, labels.own, labels.none), _beside(field, labels.own, labels.other)
    if empty is None and another is None:
        return Outcome.UNTESTED
    if empty == -1 or (another == -1 and empty != 1):
        return Outcome.HURTS
    if another == 1 and (empty == 1 or not labels.none):
        return Outcome.HOLDS
    if empty == 1 and not labels.other:
        return Outcome.HELPS
    return Outcome.PART if 1 in (empty, another) else Outcome.OPEN


def _beside(field: Field, own: str, label: str) -> int | None:
    """The outcome of the test of the own state and another; None where not tested."""
    apart = field.pair(own, label) if label else None
    return apart.outcome if apart else None
