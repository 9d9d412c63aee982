"""Numbers as sentences have them, the blocks that a sentence speaks of, and what the first lines say of the rest: a
control that fails, what is set aside, errors that are too small.

    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with 32 questions

An interval in brackets is that of 95 %. "Settled" is what Holm's p, over all tests of its family, says at 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ttabench.report import figures
from ttabench.report.blocks import CEILING, FLOOR
from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference, between
from ttabench.report.entries import Entry, ceiling_of, ends_of, running
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
CHECK = (
    "Check its prompt, what was cut of the context, and whether the base model can use so long a text. A method that "
    "was trained for the task, or that chooses what to read, may be better without a fault."
)


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
        if {tested.n} != {sum(one.n for _, one, _ in pairs), sum(other.n for _, _, other in pairs)}:
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
        units = [(tested.units, PLURALS["query" if tested.units == tested.n else unit]), (tested.across, ACROSS[unit])]
        return f"{p_value}: not settled with {' and '.join(f'{count:,} {word}' for count, word in units if count)}"


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
    for reason in dict.fromkeys(one.reason for one in comparison.aside):
        lines = [one for one in comparison.aside if one.reason == reason]
        names = listed(list(dict.fromkeys(line.label for line in lines)), "lines")
        yield f"Set aside ({reason}): {names}{_on(comparison, lines)}."


def _on(comparison: Comparison, where: Sequence[Block | Entry]) -> str:
    """In which blocks, where there are several."""
    briefs = list(dict.fromkeys(one.place.brief for one in where))
    return f" on {listed(briefs, 'blocks')}" if len(comparison.blocks) > 1 else ""


def _over_ceiling(comparison: Comparison, block: Block) -> list[str]:
    """That the ceiling is worse than a line, beyond chance: by the largest difference."""
    ceiling = ceiling_of(block.entries)
    apart = [block.between(ceiling.label, entry.label) for entry in running(block.entries)] if ceiling else []
    over = min((one for one in apart if one and one.outcome == -1), key=lambda one: one.gain, default=None)
    where = _on(comparison, [block])
    return [f"{over.left} is {Field(comparison, [block]).apart(over.left, over.right)}{where}"] if over else []
