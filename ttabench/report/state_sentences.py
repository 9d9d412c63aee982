"""Whether a method's own state helps, by its figures under its own state, another text's and an empty one.

    templora: own state 78.1, another text's 74.7, an empty one 100.0. Its state does not help here: own is 21.9 ...

helps       own is better than an empty state and than another text's: it holds this text
in part     own is better than one of the two only: what it gains may be practice with such texts
not         own is not shown to be better than either, or is worse than an empty one

"Better" is what the paired tests say, adjusted for all tests of states. Of more than three blocks whose values cannot
be averaged, the outcomes are counted in one sentence:

    mac: its state helps and holds the text on 3 of 4 tasks (streamingqa, squad_seq, msc); does not help on 1 (lamp)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ttabench.report.blocks import called
from ttabench.report.compare import Block, Comparison
from ttabench.report.entries import Entry
from ttabench.report.field import Field
from ttabench.report.phrases import MANY
from ttabench.report.standings import can_be_averaged

WORDS = {"own": "own state", "other": "another text's", "none": "an empty one"}


@dataclass(frozen=True)
class Swapped:
    """The labels of one configuration under its states; empty where one was not run."""

    own: str
    other: str
    none: str


class Outcome(Enum):
    """Outcome of the tests of a method's own state: in a sentence of its own, in one that counts blocks, as a mark."""

    HOLDS = "Its state helps, and it holds this text", "helps and holds the text", "●"
    HELPS = ("Its state helps; whether it holds this text, another text's state would say",
             "helps (another text's was not run)", "◐")  # fmt: skip
    EMPTY = ("Its state helps in part; that it holds this text is not shown",
             "helps in part (that it holds the text is not shown)", "◐")  # fmt: skip
    ANOTHER = "Its state helps in part, against another text's only", "helps in part (against another text's only)", "◐"
    OPEN = "Its state is not shown to help here", "is not shown to help", "○"
    HURTS = "Its state does not help here", "does not help", "○"
    UNTESTED = "No test of its state can be made", "was not tested", ""

    def __init__(self, alone: str, counted: str, mark: str) -> None:
        self.alone = alone
        self.counted = counted
        self.mark = mark


def state_sentences(comparison: Comparison) -> Iterator[str]:
    """One for each configuration that was run under its own state and another one; of few perplexities one a block."""
    places: dict[Swapped, list[Block]] = {}
    for block in comparison.blocks:
        for swapped in _swapped(block.entries):
            places.setdefault(swapped, []).append(block)
    for swapped, blocks in places.items():
        if can_be_averaged([block.place.metric for block in blocks]):
            yield _sentence(Field(comparison, blocks), swapped)
        elif len(blocks) > MANY:
            yield _counted(Field(comparison, blocks), swapped)
        else:
            yield from (_sentence(Field(comparison, [block]), swapped) for block in blocks)


def state_outcomes(comparison: Comparison, block: Block) -> dict[str, Outcome]:
    """By the label of every line of a block that was run under its own state and another one."""
    field = Field(comparison, [block])
    return {swapped.own: _outcome(field, swapped) for swapped in _swapped(block.entries)}


def _swapped(entries: tuple[Entry, ...]) -> Iterator[Swapped]:
    labels: dict[str, dict[str, str]] = {}
    for entry in entries:
        labels.setdefault(entry.configured, {})[entry.state_of] = entry.label
    for own in labels.values():
        if "own" in own and len(own) > 1:
            yield Swapped(own["own"], own.get("other", ""), own.get("none", ""))


def _sentence(field: Field, labels: Swapped) -> str:
    several = f" on average over {len(field.blocks)} {field.noun}" if len(field.blocks) > 1 else ""
    own, best = labels.own, field.found
    alone = len(field.blocks) == 1 < len(best.blocks)
    places = [block.place for block in best.blocks]
    where = f" on {called(field.blocks[0].place, places)}" if alone else several
    states = (("own", own), ("other", labels.other), ("none", labels.none))
    figures = ", ".join(f"{WORDS[state]} {field.shown(label)}" for state, label in states if label)
    return f"{own}{where}: {figures}. {_conclusion(field, labels)}."


def _counted(field: Field, labels: Swapped) -> str:
    """On how many blocks its state helps, and on how many not."""
    outcomes: dict[Outcome, list[Block]] = {outcome: [] for outcome in Outcome}
    for block in field.blocks:
        outcomes[_outcome(Field(field.found, [block]), labels)].append(block)
    counted = field.counted({outcome.counted: blocks for outcome, blocks in outcomes.items()})
    return f"{labels.own}: its state {counted}."


def _conclusion(field: Field, labels: Swapped) -> str:
    """Outcomes of the tests of the own state, the larger claim first."""
    outcome = _outcome(field, labels)
    if outcome is Outcome.UNTESTED:
        return outcome.alone
    to_empty = f"own is {field.apart(labels.own, labels.none, WORDS['none'])}" if labels.none else ""
    to_another = f"own is {field.apart(labels.own, labels.other, WORDS['other'])}" if labels.other else ""
    return f"{outcome.alone}: {'; '.join(filter(None, [to_empty, to_another]))}"


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
