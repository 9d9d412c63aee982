"""Whether a method's own state helps, by its figures under its own state, another text's and an empty one.

    templora: own state 78.1, another text's 74.7, an empty one 100.0. Its state does not help here: own is 21.9 ...

helps       own is better than an empty state and than another text's: it holds this text
in part     own is better than one of the two only: what it gains may be practice with such texts
not         own is not shown to be better than either, or is worse than an empty one

"Better" is what the paired tests say, adjusted for all tests of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import Entry
from ttabench.report.field import Field
from ttabench.report.standings import can_be_averaged

WORDS = {"own": "own state", "other": "another text's", "none": "an empty one"}


@dataclass(frozen=True)
class Swapped:
    """The labels of one configuration under its states; empty where one was not run."""

    own: str
    other: str
    none: str


def state_sentences(found: Comparison) -> Iterator[str]:
    """One for each configuration that was run under its own state and another one; of perplexities one a block."""
    places: dict[Swapped, list[Block]] = {}
    for block in found.blocks:
        for swapped in _swapped(block.entries):
            places.setdefault(swapped, []).append(block)
    for swapped, blocks in places.items():
        together = can_be_averaged([block.place.metric for block in blocks])
        for field in [blocks] if together else [[block] for block in blocks]:
            yield _sentence(Field(found, field), swapped)


def _swapped(entries: tuple[Entry, ...]) -> Iterator[Swapped]:
    labels: dict[str, dict[str, str]] = {}
    for entry in entries:
        labels.setdefault(entry.configured, {})[entry.state_of] = entry.label
    for own in labels.values():
        if "own" in own and len(own) > 1:
            yield Swapped(own["own"], own.get("other", ""), own.get("none", ""))


def _sentence(field: Field, labels: Swapped) -> str:
    several = f" on average over {len(field.blocks)} {field.noun}" if len(field.blocks) > 1 else ""
    own, found = labels.own, field.found
    alone = len(field.blocks) == 1 < len(found.blocks)
    where = f" on {field.blocks[0].place.brief}" if alone else several
    told = (("own", own), ("other", labels.other), ("none", labels.none))
    figures = ", ".join(f"{WORDS[state]} {field.shown(label)}" for state, label in told if label)
    return f"{own}{where}: {figures}. {_conclusion(field, labels)}."


def _conclusion(field: Field, labels: Swapped) -> str:
    """What the tests say of the own state, the larger claim first."""
    empty, another = _beside(field, labels.own, labels.none), _beside(field, labels.own, labels.other)
    to_empty = f"own is {field.apart(labels.own, labels.none, WORDS['none'])}" if labels.none else ""
    to_another = f"own is {field.apart(labels.own, labels.other, WORDS['other'])}" if labels.other else ""
    both = "; ".join(filter(None, [to_empty, to_another]))
    if empty is None and another is None:
        return "No test of its state can be made"
    if empty == -1 or (another == -1 and empty != 1):
        return f"Its state does not help here: {both}"
    if another == 1 and (empty == 1 or not labels.none):
        return f"Its state helps, and it holds this text: {both}"
    if another == 1:
        return f"Its state helps in part, against another text's only: {both}"
    if empty == 1 and not labels.other:
        return f"Its state helps; whether it holds this text, another text's state would say: {both}"
    if empty == 1:
        return f"Its state helps in part; that it holds this text is not shown: {both}"
    return f"Its state is not shown to help here: {both}"


def _beside(field: Field, own: str, label: str) -> int | None:
    """The outcome of the test of the own state and another; None where not tested."""
    each = field.pair(own, label) if label else None
    return each.outcome if each else None
