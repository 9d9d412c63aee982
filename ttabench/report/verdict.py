"""The first lines of a comparison: who leads and by how much, what is not settled, and what does not count; by rules.

    mac (65.6) is 65.6 points [43.5, 80.0] above none (0.0), p <0.001; 21.9 points [-0.6, 41.8] below icl (87.5) ...
    It recovers 75 % of the way from none to icl, and keeps 2.5 % of the bytes of icl.
    templora: own state 78.1, another text's 74.7, an empty one 100.0. Its state does not help here: own is 21.9 ...

Whom they are about is chosen by values, what is said of differences rests on the tests (`differences`). An interval in
brackets is that of 95 %; "settled" is what Holm's p, over all tests of its family, says at 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import NamedTuple, get_args

from ttabench.report.blocks import CEILING, FLOOR
from ttabench.report.compare import Block, Comparison, recovered
from ttabench.report.differences import Difference, Standing, between, can_be_averaged
from ttabench.report.entries import Entry, end_of, ends_of, plain, running, with_interval
from ttabench.run.budget import asked_of
from ttabench.stats.clusters import Varying
from ttabench.stats.estimate import LEVEL
from ttabench.stats.metrics import known

MANY = 3
"""So many names are listed; more are counted."""
PLURALS: dict[str, str] = {"": "units", **{unit: f"{unit}s" for unit in get_args(Varying)}, "query": "questions"}
ACROSS: dict[str, str] = dict.fromkeys(PLURALS, "draws") | {"group": "documents", "draw": "questions"}
"""The second unit that varies, where published rows are asked under several seeds."""
CHECK = (
    "Check its prompt, what was cut of the context, and whether the base model can use so long a text. A method that "
    "was trained for the task, or that chooses what to read, may be better without a fault."
)
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
    alone = "No row leads: there are no two methods of the same task, source and base model to rank."
    return [*(first or [alone]), *cautions(comparison)]


def _lead(field: Field, standing: Standing) -> Iterator[str]:
    """The leader and the second, and the leader against all others."""
    leader, second = standing.order[0], standing.second
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
    leader, several = standing.order[0], len(field.blocks) > 1
    floor, ceiling = field.end(FLOOR), field.end(CEILING)
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
        zero = room.value == 0 and not (room.better or room.worse)
        what = "no gap" if zero or room.p < LEVEL else "no significant gap"
        yield f"There is {what} to recover: {ceiling} ({field.shown(ceiling)}) is {field.apart(ceiling, floor)}."
    elif part is not None and gain is not None and gain.beyond_chance:  # no share where they were not asked alike
        where = "" if blocks == len(field.blocks) else f" on {blocks} of {len(field.blocks)} blocks"
        at = kept_bytes(field.both(leader, ceiling), ceiling)
        kept = f", and keeps {at}" if at else ""
        yield f"It recovers {round(100 * part) + 0:d} % of the way from {floor} to {ceiling}{where}{kept}."


def _of_ends(field: Field) -> Iterator[str]:
    """Floor and ceiling alone."""
    floor, ceiling = field.end(FLOOR), field.end(CEILING)
    if shared := [block for block, _, _ in field.both(ceiling, floor)] if floor and ceiling else []:
        field = Field(field.found, shared)
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


# --- blocks that a sentence speaks of, numbers as it has them, and what the first lines say of the rest -------------


@dataclass(frozen=True)
class Field:
    """Blocks of a comparison: one, or several with means over them."""

    found: Comparison
    blocks: Sequence[Block]

    @property
    def metric(self) -> str:
        """Of the first block: those that are averaged are all fractions, or have one metric."""
        return self.blocks[0].place.metric

    def both(self, one: str, other: str) -> list[tuple[Block, Entry, Entry]]:
        """Two lines, block by block, where both are and neither is set aside."""
        pairs = ((block, block.named(one), block.named(other)) for block in self.blocks)
        return [(block, a, b) for block, a, b in pairs if a is not None and b is not None and not (a.aside or b.aside)]

    def pair(self, left: str, right: str) -> Difference | None:
        """The difference of two labels in the one block, or its mean over several; None where it was not tested."""
        blocks = [block for block, _, _ in self.both(left, right)] if len(self.blocks) > 1 else self.blocks
        return between(blocks[0].differences if len(blocks) == 1 else self.found.overall, left, right)

    def end(self, method: str) -> str:
        """The label of floor or ceiling, see `end_of`; empty where no block has one."""
        return next((entry.label for block in self.blocks if (entry := end_of(block.entries, method))), "")

    def shown(self, label: str) -> str:
        """The figure of a line, or its mean over the blocks that have it, for people."""
        return plain(self.metric, fmean(entry.value for block in self.blocks if (entry := block.named(label))))

    def gap(self, left: str, right: str) -> float:
        """The figure of left less that of right, in the mean over the blocks that have both."""
        return fmean(one.value - other.value for _, one, other in self.both(left, right))

    def apart(self, left: str, right: str, called: str = "") -> str:
        """What left is of right (`called`): `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled ...`."""
        pairs, tested = self.both(left, right), self.pair(left, right)
        value = tested.value if tested else self.gap(left, right)
        points = " points" * (known(self.metric).scale == 100)
        named = f"{called or right} ({plain(self.metric, fmean(other.value for _, _, other in pairs))})"
        if tested is None:
            amount = f"{plain(self.metric, abs(value))}{points}"
            return f"{amount} {_side(self.metric, value)} {named}, untested"
        where = ""
        if {tested.n} != {sum(one.n for _, one, _ in pairs), sum(other.n for _, _, other in pairs)}:
            where = f" (on the {tested.n:,} questions that both were asked)"
        if value == 0 and not (tested.better or tested.worse):
            return f"equal to {named} on all {tested.n:,} questions{where}"
        own = tested if value > 0 else tested.turned()
        amount = with_interval(self.metric, own.value, own.ci_low, own.ci_high, points)
        return f"{amount} {_side(self.metric, value)} {named}{self._settled(tested)}{where}"

    def _settled(self, tested: Difference) -> str:
        if tested.p_holm is None:
            return ": no test can be made"
        p = tested.p_holm
        amount = "<0.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.2g}"
        p_value = f", {'p' if tested.tests == 1 else 'Holm p'} {amount}"
        if tested.beyond_chance:
            return p_value
        unit = "query" if tested.units == tested.n else tested.unit
        units = [(tested.units, PLURALS[unit]), (tested.across, ACROSS[tested.unit])]
        return f"{p_value}: not settled with {' and '.join(f'{count:,} {word}' for count, word in units if count)}"


def lone(block: Block) -> bool:
    """Whether what varies is there once (in every sub-task), and has several queries: then errors are too small."""
    clusters: dict[str, Counter[str]] = {}
    for value in (value for entry in block.entries for value in entry.values.values()):
        clusters.setdefault(value.stratum, Counter())[value.cluster] += 1
    several = any(count > len(block.entries) for own in clusters.values() for count in own.values())
    return several and all(len(own) == 1 for own in clusters.values())


def _side(metric: str, value: float) -> str:
    if math.isclose(value, 0.0, abs_tol=1e-12):
        return "from"
    if known(metric).higher_is_better:
        return "above" if value > 0 else "below"
    return "better than" if value < 0 else "worse than"


def listed(names: Sequence[str], noun: str = "others") -> str:
    """`a, b and c`; more than `MANY` are counted."""
    if len(names) > MANY:
        return f"{len(names)} {noun}"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def kept_bytes(pairs: Sequence[tuple[Block, Entry, Entry]], other: str) -> str:
    """Bytes of state of the first against the second: `2.5 % of the bytes of icl`, in the geometric mean over blocks;
    empty where equal, 0 or not known, and under a budget, which counts other bytes than those of states."""
    sides = [(one.costs.get("state_bytes"), end.costs.get("state_bytes")) for _, one, end in pairs
             if asked_of(one.record.config) is None]  # fmt: skip
    ratios = [math.log(a / b) for a, b in sides if a and b]
    percent = 100 * math.exp(fmean(ratios)) if ratios else 100.0
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return "" if math.isclose(percent, 100) else f"{shown} % of the bytes of {other}"


def cautions(comparison: Comparison) -> Iterator[str]:
    """Where a control fails, where what varies is there once, and what is set aside."""
    for method, end in ((FLOOR, "floor"), (CEILING, "ceiling")):
        if several := [block for block in comparison.blocks if len(ends_of(block.entries, method)) > 1]:
            yield f"There are several lines of {method}{_on(comparison, several)}, so none of them is the {end}."
    if over := [clause for block in comparison.blocks for clause in _over_ceiling(comparison, block)]:
        yield f"The ceiling may be broken: {listed(over, 'lines are above it')}. {CHECK}"
    if weak := [block for block in comparison.blocks if block.differences and lone(block)]:
        unit = weak[0].entries[0].record.unit
        only = f"There is one {unit} only{_on(comparison, weak)}, so errors are too small"
        yield f"{only}: they are over its questions, and another {unit} may differ by more. Run more seeds."
    if untrained := [one for one in (*comparison.entries, *comparison.aside) if one.untrained]:
        names = listed(list(dict.fromkeys(one.label for one in untrained)), "methods")
        yield f"Untrained (no checkpoint): {names}{_on(comparison, untrained)}; such figures say nothing of a method."
    for reason in dict.fromkeys(one.aside for one in comparison.aside):
        lines = [one for one in comparison.aside if one.aside == reason]
        names = listed(list(dict.fromkeys(line.label for line in lines)), "lines")
        yield f"Set aside ({reason}): {names}{_on(comparison, lines)}."


def _on(comparison: Comparison, where: Sequence[Block | Entry]) -> str:
    """In which blocks, where there are several."""
    briefs = list(dict.fromkeys(one.place.brief for one in where))
    return f" on {listed(briefs, 'blocks')}" if len(comparison.blocks) > 1 else ""


def _over_ceiling(comparison: Comparison, block: Block) -> list[str]:
    """That the ceiling is worse than a line, beyond chance: by the largest difference."""
    ceiling = end_of(block.entries, CEILING)
    apart = [between(block.differences, ceiling.label, one.label) for one in running(block.entries)] if ceiling else []
    over = min((one for one in apart if one and one.outcome == -1), key=lambda one: one.gain, default=None)
    where = _on(comparison, [block])
    return [f"{over.left} is {Field(comparison, [block]).apart(over.left, over.right)}{where}"] if over else []
