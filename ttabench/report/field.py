"""The blocks that a sentence speaks of: one, or several with means over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ttabench.report import figures
from ttabench.report.cautions import lone
from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference, between
from ttabench.report.entries import Entry
from ttabench.report.phrases import MANY, Varied, apart, untested

End = Callable[[Sequence[Entry]], Entry | None]
"""`floor_of`, or `ceiling_of`."""


@dataclass(frozen=True)
class Field:
    """Blocks of a comparison."""

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

    def shown(self, label: str) -> str:
        """The figure of a line, or its mean over the blocks that have it, for people."""
        return figures.plain(self.metric, fmean(entry.value for block in self.blocks if (entry := block.named(label))))

    def apart(self, left: str, right: str, called: str = "") -> str:
        """How far left is from right, see `phrases.apart`; `called` stands for the label of right."""
        pairs, tested = self.both(left, right), self.pair(left, right)
        named = f"{called or right} ({figures.plain(self.metric, fmean(other.value for _, other in pairs))})"
        if tested is None:
            return f"{untested(self.metric, self.gap(left, right), named)} ({self.why(left, right)})"
        some = tested.blocks < len(self.blocks) > 1
        where = f" (tested on {tested.blocks} of {len(self.blocks)} {self.noun})" if some else ""
        if not some and {tested.n} != {sum(pair[side].n for pair in pairs) for side in (0, 1)}:
            where = f" (on the {tested.n:,} questions that both were asked)"
        return (
            apart(tested, named, Varied(self.blocks[0].groups[0].record.unit, len(pairs[0][0].seeds), self.lone))
            + where
        )

    def gap(self, left: str, right: str) -> float:
        """The figure of left less that of right, in the mean over the blocks that have both."""
        return fmean(one.value - other.value for one, other in self.both(left, right))

    def why(self, left: str, right: str) -> str:
        """Why two lines have no difference."""
        reasons = (
            unpaired.reason
            for block in self.blocks
            for unpaired in block.unpaired
            if {unpaired.left, unpaired.right} == {left, right}
        )
        return next(reasons, "a figure is no number")

    @cached_property
    def lone(self) -> bool:
        """Whether what varies is there once in one of the blocks."""
        return any(lone(block) for block in self.blocks)

    def outcomes(self, left: str, right: str) -> list[tuple[Block, int | None]]:
        """Block by block the outcome of the test of two lines, where neither is set aside; None where not tested."""
        both = [block for block in self.blocks
                if all((line := block.named(label)) and not line.aside for label in (left, right))]  # fmt: skip
        return [(block, tested.outcome if (tested := block.between(left, right)) else None) for block in both]

    def end(self, which: End) -> str:
        """The label of floor or ceiling; empty where no block has one."""
        return next((entry.label for block in self.blocks if (entry := which(block.entries))), "")

    def where(self, blocks: Sequence[Block]) -> str:
        """Their names; more than `MANY` are counted."""
        return ", ".join(block.place.brief for block in blocks) if len(blocks) <= MANY else f"{len(blocks)} {self.noun}"

    def counted(self, blocks_by_outcome: Mapping[str, Sequence[Block]]) -> str:
        """How many blocks had each outcome, with the names of few: `better on 2 of 3 tasks (a, b); worse on 1 (c)`."""
        found = {outcome: blocks for outcome, blocks in blocks_by_outcome.items() if blocks}
        total = sum(map(len, found.values()))
        if len(found) == 1:
            ((outcome, blocks),) = found.items()
            if total == 1:
                return f"{outcome} on {self.where(blocks)}"
            return f"{outcome} on {'any of the' if 'not' in outcome.split() else 'all'} {total} {self.noun}"
        clauses: list[str] = []
        for outcome, blocks in found.items():
            of_all = "" if clauses else f" of {total} {self.noun}"
            names = f" ({self.where(blocks)})" if len(blocks) <= MANY else ""
            clauses.append(f"{outcome} on {len(blocks)}{of_all}{names}")
        return "; ".join(clauses)

    @property
    def metric(self) -> str:
        """Of the first block: those that are averaged are all fractions, or have one metric."""
        return self.blocks[0].place.metric

    @property
    def noun(self) -> str:
        """Tasks, where every block is another one."""
        return "tasks" if len({block.place.task for block in self.blocks}) == len(self.blocks) else "blocks"
