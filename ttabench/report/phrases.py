"""Numbers as sentences have them, and the blocks that a sentence speaks of.

    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with 32 questions; about 65 would

An interval in brackets is that of 95 %. "Settled" is what Holm's p, over all tests of its family, says at 5 %; how many
units would settle it is computed from the paired standard error, for a difference of this size and four times in five.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ttabench.report import figures
from ttabench.report.blocks import CEILING
from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference, between
from ttabench.report.entries import Entry
from ttabench.run.budget import asked_of
from ttabench.stats.figures import Unit
from ttabench.stats.metrics import known
from ttabench.stats.varying import Varying

MANY = 3
"""So many names are listed; more are counted."""
PLURALS: dict[Varying, str] = {
    "query": "questions", "document": "documents", "group": "groups", "draw": "draws", "book": "books",
    "conversation": "conversations", "dialogue": "dialogues", "user": "users",
    "context": "contexts",
}  # fmt: skip
ACROSS: dict[Varying, str] = dict.fromkeys(PLURALS, "draws") | {"group": "documents", "draw": "questions"}
"""The second unit that varies, where published rows are asked under several seeds."""
COUNTED = {1: "better", -1: "worse", 0: "not settled", None: "not tested"}
"""Outcomes of a test, as they are counted over blocks."""


@dataclass(frozen=True)
class Field:
    """Blocks of a comparison: one, or several with means over them."""

    found: Comparison
    blocks: Sequence[Block]

    @property
    def metric(self) -> str:
        """Of the first block: those that are averaged are all fractions, or have one metric."""
        return self.blocks[0].place.metric

    @property
    def noun(self) -> str:
        """Tasks, where every block is another one."""
        return "tasks" if len({block.place.task for block in self.blocks}) == len(self.blocks) else "blocks"

    def both(self, one: str, other: str) -> list[tuple[Block, Entry, Entry]]:
        """Two lines, block by block, where both are and neither is set aside."""
        pairs = ((block, block.named(one), block.named(other)) for block in self.blocks)
        return [(block, a, b) for block, a, b in pairs if a is not None and b is not None and not (a.aside or b.aside)]

    def pair(self, left: str, right: str) -> Difference | None:
        """The difference of two labels in the one block, or its mean over several; None where it was not tested."""
        blocks = [block for block, _, _ in self.both(left, right)] if len(self.blocks) > 1 else self.blocks
        return blocks[0].between(left, right) if len(blocks) == 1 else between(self.found.overall, left, right)

    def end(self, which: Callable[[Sequence[Entry]], Entry | None]) -> str:
        """The label of floor or ceiling (`floor_of`, `ceiling_of`); empty where no block has one."""
        return next((entry.label for block in self.blocks if (entry := which(block.entries))), "")

    def shown(self, label: str) -> str:
        """The figure of a line, or its mean over the blocks that have it, for people."""
        return figures.plain(self.metric, fmean(entry.value for block in self.blocks if (entry := block.named(label))))

    def gap(self, left: str, right: str) -> float:
        """The figure of left less that of right, in the mean over the blocks that have both."""
        return fmean(one.value - other.value for _, one, other in self.both(left, right))

    def apart(self, left: str, right: str, called: str = "") -> str:
        """What left is of right (`called`): `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled ...`."""
        pairs, tested = self.both(left, right), self.pair(left, right)
        value, points = (
            tested.value if tested else self.gap(left, right),
            " points" * (known(self.metric).scale == 100),
        )
        named = f"{called or right} ({figures.plain(self.metric, fmean(other.value for _, _, other in pairs))})"
        if tested is None:
            missing = (one for block in self.blocks for one in block.unpaired if {one.left, one.right} == {left, right})
            reason = next((one.reason for one in missing), "a figure is no number")
            amount = f"{figures.plain(self.metric, abs(value))}{points}"
            return f"{amount} {_side(self.metric, value)} {named}, untested ({reason})"
        where = ""
        if tested.blocks < len(self.blocks) > 1:
            where = f" (tested on {tested.blocks} of {len(self.blocks)} {self.noun})"
        elif {tested.n} != {sum(one.n for _, one, _ in pairs), sum(other.n for _, _, other in pairs)}:
            where = f" (on the {tested.n:,} questions that both were asked)"
        if value == 0 and not (tested.better or tested.worse):
            return f"equal to {named} on all {tested.n:,} questions{where}"
        own = tested if value > 0 else tested.turned()
        amount = figures.with_interval(self.metric, own.value, own.ci_low, own.ci_high, points)
        return f"{amount} {_side(self.metric, value)} {named}{self._settled(tested)}{where}"

    def _settled(self, tested: Difference) -> str:
        if tested.p_holm is None:
            return ": no test can be made"
        p = tested.p_holm
        p_value = (
            f", {'p' if tested.tests == 1 else 'Holm p'} {'<0.001' if p < 0.001 else '1' if p > 0.995 else f'{p:.2g}'}"
        )
        if tested.beyond_chance:
            return p_value
        unit = self.blocks[0].entries[0].record.unit
        if any(map(lone, self.blocks)):
            return f"{p_value}: not settled with the questions of one {unit}"
        units = [(tested.units, PLURALS["query" if tested.units == tested.n else unit]), (tested.across, ACROSS[unit])]
        names = " and ".join(f"{count:,} {word}" for count, word in units if count)
        now, word = units[tested.more_across]
        enough = f"no number of {word} in reach"
        if tested.needed is not None:
            enough = f"about {about(max(tested.needed, now + 1)):,}{f' {word}' * bool(tested.across)}"
        return f"{p_value}: not settled with {names}; {enough} would"

    def counted(self, left: str, right: str) -> str:
        """In how many of several blocks left is better, worse, not settled, and not tested, with the names of few:
        `better on 2 of 3 tasks (a, b); worse on 1 of 3 (c)`; empty where nowhere tested."""
        tests = [(block.place.brief, block.between(left, right)) for block, _, _ in self.both(left, right)]
        outcomes = [(name, tested.outcome if tested else None) for name, tested in tests]
        if len(self.blocks) == 1 or all(outcome is None for _, outcome in outcomes):
            return ""
        clauses = [
            f"{word} on {len(own)} of {len(outcomes)} {self.noun}" + f" ({', '.join(own)})" * (len(own) <= MANY)
            for value, word in COUNTED.items() if (own := [name for name, outcome in outcomes if outcome == value])
        ]  # fmt: skip
        return "; ".join(clauses)


def lone(block: Block) -> bool:
    """Whether what varies is there once (in every sub-task), and has several queries: then errors are too small."""
    clusters: dict[str, Counter[str]] = {}
    for value in (value for entry in block.entries for value in entry.values.values()):
        name, stratum = (value.text, "") if isinstance(value, Unit) else (value.cluster, value.stratum)
        clusters.setdefault(stratum, Counter())[name] += 1
    several = any(count > len(block.entries) for own in clusters.values() for count in own.values())
    return several and all(len(own) == 1 for own in clusters.values())


def _side(metric: str, value: float) -> str:
    if math.isclose(value, 0.0, abs_tol=1e-12):
        return "from"
    if known(metric).higher_is_better:
        return "above" if value > 0 else "below"
    return "better than" if value < 0 else "worse than"


def about(count: int) -> int:
    """A number of units rounded up to what can be said of it: 7, 65, 480."""
    step = 1 if count < 20 else 5 if count < 100 else 10 ** (len(str(count)) - 2)
    return math.ceil(count / step) * step


def listed(names: Sequence[str], noun: str = "others") -> str:
    """`a, b and c`; more than `MANY` are counted."""
    return f"{len(names)} {noun}" if len(names) > MANY else enumerated(names)


def enumerated(names: Sequence[str]) -> str:
    """`draws, documents and books`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def kept_bytes(pairs: Sequence[tuple[Block, Entry, Entry]], other: str) -> str:
    """Bytes of state of the first against the second: `2.5 % of the bytes of icl`, in the geometric mean over blocks;
    empty where equal, 0 or not known. Where a budget was asked for, bytes are those that it counts: `kept_share`."""
    sides = [[entry.costs.get("state_bytes") for entry in pair] for _, *pair in pairs]
    if any(asked_of(one.record.config) is not None for _, one, _ in pairs):
        shares = [
            [1.0 if entry.method == CEILING else entry.costs.get("kept_share") for entry in pair] for _, *pair in pairs
        ]
        sides = shares if all(all(own) for own in shares) else sides
    ratios = [math.log(a / b) for a, b in sides if a and b]
    percent = 100 * math.exp(fmean(ratios)) if ratios else 100.0
    return "" if math.isclose(percent, 100) else f"{percent:,.{int(percent < 10)}f} % of the bytes of {other}"
