"""Numbers as sentences have them, and the blocks that a sentence speaks of.

    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with 32 questions; about 65 would

An interval in brackets is that of 95 %. "Settled" is what Holm's p, over all tests of its family, says at 5 %; how many
units would settle it is computed from the paired standard error, for a difference of this size and four times in five.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ttabench.core.amounts import size
from ttabench.report import figures
from ttabench.report.blocks import CEILING
from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference, between
from ttabench.report.entries import Entry, higher_is_better
from ttabench.run.budget import asked_of
from ttabench.stats.figures import Unit
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


@dataclass(frozen=True)
class Field:
    """Blocks of a comparison: one, or several with means over them."""

    found: Comparison
    blocks: Sequence[Block]

    def pair(self, left: str, right: str) -> Difference | None:
        """The difference of two labels in the one block, or its mean over several; None where it was not tested."""
        blocks = [block for block, _ in self.outcomes(left, right)] if len(self.blocks) > 1 else self.blocks
        return blocks[0].between(left, right) if len(blocks) == 1 else between(self.found.overall, left, right)

    def both(self, one: str, other: str) -> list[tuple[Entry, Entry]]:
        """Two lines, block by block, where both are and neither is set aside."""
        pairs = ((block.named(one), block.named(other)) for block in self.blocks)
        return [(a, b) for a, b in pairs if a is not None and b is not None and not (a.aside or b.aside)]

    def outcomes(self, left: str, right: str) -> list[tuple[Block, int | None]]:
        """Block by block the outcome of the test of two lines, where neither is set aside; None where not tested."""
        both = [block for block in self.blocks
                if all((line := block.named(label)) and not line.aside for label in (left, right))]  # fmt: skip
        return [(block, tested.outcome if (tested := block.between(left, right)) else None) for block in both]

    def shown(self, label: str) -> str:
        """The figure of a line, or its mean over the blocks that have it, for people."""
        return figures.plain(self.metric, fmean(entry.value for block in self.blocks if (entry := block.named(label))))

    def gap(self, left: str, right: str) -> float:
        """The figure of left less that of right, in the mean over the blocks that have both."""
        return fmean(one.value - other.value for one, other in self.both(left, right))

    def apart(self, left: str, right: str, called: str = "") -> str:
        """What left is of right (`called`): `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled ...`."""
        pairs, tested = self.both(left, right), self.pair(left, right)
        named = f"{called or right} ({figures.plain(self.metric, fmean(other.value for _, other in pairs))})"
        points = " points" * (figures.scale(self.metric) == 100)
        if tested is None:
            gap = self.gap(left, right)
            amount = f"{figures.plain(self.metric, abs(gap))}{points} {_side(self.metric, gap)} {named}"
            missing = (unpaired for block in self.blocks for unpaired in block.unpaired)
            reasons = (unpaired.reason for unpaired in missing if {unpaired.left, unpaired.right} == {left, right})
            return f"{amount}, untested ({next(reasons, 'a figure is no number')})"
        where = ""
        if tested.blocks < len(self.blocks) > 1:
            where = f" (tested on {tested.blocks} of {len(self.blocks)} {self.noun})"
        elif {tested.n} != {sum(pair[side].n for pair in pairs) for side in (0, 1)}:
            where = f" (on the {tested.n:,} questions that both were asked)"
        if tested.value == 0 and not (tested.better or tested.worse):
            return f"equal to {named} on all {tested.n:,} questions{where}"
        sign, low, high = (1 if tested.value > 0 else -1), tested.ci_low, tested.ci_high
        if low is not None and high is not None:
            low, high = sorted((sign * low, sign * high))
        amount = figures.with_interval(self.metric, abs(tested.value), low, high, points)
        settled = self._settled(tested, len(pairs[0][0].group.seeds))
        return f"{amount} {_side(self.metric, tested.value)} {named}{settled}{where}"

    def _settled(self, tested: Difference, seeds: int) -> str:
        if tested.p_holm is None:
            return ": no test can be made"
        p = tested.p_holm
        probability = "<0.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.2g}"
        p_value = f", {'p' if tested.tests == 1 else 'Holm p'} {probability}"
        if tested.beyond_chance:
            return p_value
        unit = self.blocks[0].entries[0].group.record.unit
        if any(map(lone, self.blocks)):
            return f"{p_value}: not settled with the questions of one {unit}"
        units = [(tested.units, PLURALS["query" if tested.units == tested.n else unit]), (tested.across, ACROSS[unit])]
        names = " and ".join(_counted(count, word, seeds) for count, word in units if count)
        now, word = units[tested.more_across]
        if tested.needed is None:
            return f"{p_value}: not settled with {names}, and no number of {word} in reach would"
        more = about(max(tested.needed, now + 1))
        enough = _counted(more, word, math.ceil(seeds * more / now), named=bool(tested.across))
        return f"{p_value}: not settled with {names}; about {enough} would"

    def end(self, which: Callable[[Sequence[Entry]], Entry | None]) -> str:
        """The label of floor or ceiling (`floor_of`, `ceiling_of`); empty where no block has one."""
        return next((entry.label for block in self.blocks if (entry := which(block.entries))), "")

    def counted(self, blocks_by_outcome: Mapping[str, Sequence[Block]]) -> str:
        """How many blocks had each outcome, with the names of few: `better on 2 of 3 tasks (a, b); worse on 1 (c)`."""
        found = {outcome: [block.place.brief for block in own] for outcome, own in blocks_by_outcome.items() if own}
        total = sum(map(len, found.values()))
        if len(found) == 1 and total > 1:
            (outcome,) = found
            return f"{outcome} on {'any of the' if 'not' in outcome.split() else 'all'} {total} {self.noun}"
        clauses: list[str] = []
        for outcome, own in found.items():
            of_all = "" if clauses else f" of {total} {self.noun}"
            names = f" ({', '.join(own)})" if len(own) <= MANY else ""
            clauses.append(f"{outcome} on {own[0] if total == 1 else f'{len(own)}{of_all}{names}'}")
        return "; ".join(clauses)

    @property
    def metric(self) -> str:
        """Of the first block: those that are averaged are all fractions, or have one metric."""
        return self.blocks[0].place.metric

    @property
    def noun(self) -> str:
        """Tasks, where every block is another one."""
        return "tasks" if len({block.place.task for block in self.blocks}) == len(self.blocks) else "blocks"


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
    if higher_is_better(metric):
        return "above" if value > 0 else "below"
    return "better than" if value < 0 else "worse than"


def _counted(count: int, word: str, seeds: int, *, named: bool = True) -> str:
    """`18 draws (3 seeds)`: a seed is one draw of every sub-task."""
    of_seeds = f" ({seeds:,} seed{'s' * (seeds > 1)})" if word == "draws" and seeds < count else ""
    return f"{count:,}{f' {word}' * named}{of_seeds}"


def about(count: int) -> int:
    """A number of units rounded up to what can be said of it: 7, 65, 480."""
    if count < 20:
        return count
    step = 5 if count < 100 else 10 ** (len(str(count)) - 2)
    return math.ceil(count / step) * step


def listed(names: Sequence[str], noun: str = "others") -> str:
    """`a, b and c`; more than `MANY` are counted."""
    if len(names) > MANY:
        return f"{len(names)} {noun}"
    return enumerated(names)


def enumerated(names: Sequence[str]) -> str:
    """`draws, documents and books`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def kept_bytes(pairs: Sequence[tuple[Entry, Entry]], other: str) -> str:
    """Bytes of state of the first against the second: `1/4 of the bytes of icl`, in the geometric mean over blocks;
    empty where equal or not known. Where a budget was asked for, bytes are those that it counts: `kept_share`."""
    shares = [(_share(one), _share(two)) for one, two in pairs]
    if any(asked_of(one.group.record.config) is not None for one, _ in pairs) and all(all(own) for own in shares):
        kept = shares
    else:
        kept = [(one.costs.get("state_bytes"), two.costs.get("state_bytes")) for one, two in pairs]
    known = [(a, b) for a, b in kept if a is not None and b is not None]
    if all(a == b for a, b in known):
        return ""
    if any(a == 0 or b == 0 for a, b in known):
        ours, theirs = (fmean(side) for side in zip(*known, strict=True))
        return f"{size(ours)} of state, {other} {size(theirs)}"
    ratio = math.exp(fmean(math.log(a / b) for a, b in known))
    if 0.95 < ratio < 1.05:
        return f"about as many bytes as {other}"
    if 2 / 3 < ratio < 1.5:
        times = f"{100 * ratio:.0f} % of the"
    else:
        times = f"{ratio:.{0 if ratio >= 10 else 1}f} times the" if ratio > 1 else f"1/{1 / ratio:.0f} of the"
    return f"{times} bytes of {other}"


def _share(entry: Entry) -> float | None:
    return 1.0 if entry.method == CEILING else entry.costs.get("kept_share")
