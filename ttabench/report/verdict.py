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

from ttabench.report.blocks import called
from ttabench.report.compare import BEYOND, Block, Comparison, recovered
from ttabench.report.differences import Standing, can_be_averaged
from ttabench.report.entries import Entry, ceiling_of, floor_of
from ttabench.report.phrases import Field, cautions, kept_bytes, listed, theirs_sentences
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
    EMPTY = "Its state helps in part; that it holds this text is not shown"
    ANOTHER = "Its state helps in part, against another text's only"
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
    states, standing = list(_state_sentences(comparison)), comparison.standing
    field = Field(
        comparison, [comparison.blocks[place] for place in standing.blocks] if standing else comparison.blocks
    )
    if len(comparison.blocks) > 1 and all(len(block.entries) == 1 for block in comparison.blocks):
        first = [f"Nothing to compare: each of {len(comparison.blocks)} blocks has one line."]
        return [*first, *theirs_sentences(comparison), *cautions(comparison)]
    if standing is None:
        first = states or [_of_ends(field)]
    else:
        first = [*_lead(field, standing), *_against_ends(field, standing)]
        # of one method under several states that is the question
        first = [*states, *first] if len(standing.order) == 1 else [*first, *states]
    return [*first, *cautions(comparison), *theirs_sentences(comparison)]


def _lead(field: Field, standing: Standing) -> Iterator[str]:
    """The leader and the second, and the leader against all others."""
    leader, second = standing.leader, standing.second
    if not second:
        return
    first = f"{leader} has the best mean rank, {second} the second best"
    if standing.averaged:
        best, tested, several = field.shown(leader), field.pair(leader, second), len(field.blocks) > 1
        equal = math.isclose(field.gap(leader, second), 0.0, abs_tol=1e-12)
        leads = tested and tested.outcome is not None and not equal and _above_another(field, leader)
        first = f"{leader} {'leads with' if leads else 'has'} the best {'mean' if several else field.metric}, {best}"
        first += f", {field.apart(leader, second)}"
    by_outcome: dict[int | None, list[str]] = {outcome: [] for outcome in BESIDE}
    for label in standing.order:
        if label not in (leader, second):
            by_outcome[apart.outcome if (apart := field.pair(leader, label)) else None].append(label)
    clauses = [f"{BESIDE[outcome]} {listed(labels)}" for outcome, labels in by_outcome.items() if labels]
    counted = field.counted(leader, second)
    yield ". ".join(filter(None, [
        _where(field, standing) + first, counted and f"Against {second}: {counted}",
        f"It is {'; '.join(clauses)}" if clauses and len(by_outcome[None]) < len(standing.order) - 2 else "",
    ])) + "."  # fmt: skip


def _where(field: Field, standing: Standing) -> str:
    """Which blocks count, where not all of them do or they are several."""
    if len(field.found.blocks) == 1:
        return ""
    if len(field.blocks) == 1:
        return f"On {field.blocks[0].place.brief}, "
    if not standing.second:
        return f"Over {len(field.blocks)} {field.noun}, "
    count, left = len(standing.order), len(standing.left_out)
    return f"On the {len(field.blocks)} {field.noun} that {count} of {count + left} lines share, "


def _against_ends(field: Field, standing: Standing) -> Iterator[str]:
    """The leader against floor and ceiling, and how much of the way between them it goes."""
    leader, several = standing.leader, len(field.blocks) > 1
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    ends = [end for end in (floor, ceiling) if end and field.both(leader, end)]
    if not ends and not standing.second and len(field.blocks[0].entries) == 1:
        yield f"{leader}: nothing to compare it with."
    parts = [f"Against {end}: {counted}" for end in ends if (counted := field.counted(leader, end))]
    if ends and standing.averaged:
        clauses = "; ".join(field.apart(leader, end) for end in ends)
        where = "" if standing.second else _where(field, standing)
        parts = [f"{where}{leader} ({field.shown(leader)}{' on average' * several}) is {clauses}", *parts]
    if parts and not standing.averaged:
        parts[0] = f"{leader} a{parts[0][1:]}"  # no sentence before has named it
    if parts:
        yield ". ".join(parts) + "."
    if ends and standing.averaged:
        yield from _recovery(field, leader, floor, ceiling)


def _recovery(field: Field, leader: str, floor: str, ceiling: str) -> Iterator[str]:
    """The share of the way from floor to ceiling, over all blocks that have both, lost ones too."""
    if not floor or not ceiling or not field.both(ceiling, floor):
        return
    part, blocks = recovered(field.blocks, leader)
    room, gain = field.pair(ceiling, floor), field.pair(leader, floor)
    if room is None or room.p is None:
        return
    at = kept_bytes(field.both(leader, ceiling), ceiling)
    if room.p >= LEVEL or room.gain < 0:
        yield f"There is no gap to recover: {ceiling} ({field.shown(ceiling)}) is {field.apart(ceiling, floor)}."
    elif part is not None and part > BEYOND:
        yield f"{ceiling} is no ceiling here: {leader} goes more than twice as far from {floor}."
    elif part is not None and gain is not None and gain.beyond_chance:  # no share where they were not asked alike
        where = "" if blocks == len(field.blocks) else f" on {blocks} of {len(field.blocks)} {field.noun}"
        kept = f", and keeps {at}" if at else ""
        yield f"It recovers {round(100 * part) + 0:d} % of the way from {floor} to {ceiling}{where}{kept}."
    elif at:
        yield f"It keeps {at}."


def _of_ends(field: Field) -> str:
    """Floor and ceiling alone, or runs of one configuration."""
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    if not floor or not ceiling or not field.both(ceiling, floor):
        return "Nothing to compare."
    apart, mean = field.pair(ceiling, floor), " on average" * (len(field.blocks) > 1)
    head = f"No method between {floor} and {ceiling}: {ceiling} ({field.shown(ceiling)}{mean}) is"
    gap = " There is a gap for a method to recover." if apart and apart.beyond_chance and apart.gain > 0 else ""
    return f"{head} {field.apart(ceiling, floor)}.{gap}"


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


def state_outcomes(comparison: Comparison, block: Block) -> dict[str, Outcome]:
    """By the label of every line of a block that was run under its own state and another one."""
    field = Field(comparison, [block])
    return {swapped.own: _outcome(field, swapped) for swapped in _swapped(block.entries)}


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
    blocks, place = field.found.blocks, field.blocks[0].place
    where = f" on average over {len(field.blocks)} {field.noun}" if len(field.blocks) > 1 else ""
    if len(field.blocks) == 1 < len(blocks):
        where = f" on {called(place, [block.place for block in blocks])}"
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
    if another == 1:
        return Outcome.HOLDS if empty == 1 or not labels.none else Outcome.ANOTHER
    if empty == 1:
        return Outcome.EMPTY if labels.other else Outcome.HELPS
    return Outcome.OPEN


def _beside(field: Field, own: str, label: str) -> int | None:
    """The outcome of the test of the own state and another; None where not tested."""
    apart = field.pair(own, label) if label else None
    return apart.outcome if apart else None
