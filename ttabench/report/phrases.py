"""Numbers as sentences have them, the blocks that a sentence speaks of, and what the first lines say of the rest: a
control that fails, what is set aside or left out, errors that are too small; and what --strict does not accept.

    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with 32 questions; about 65 would

An interval in brackets is that of 95 %. "Settled" is what Holm's p, over all tests of its family, says at 5 %; how many
units would settle it is computed from the paired standard error, for a difference of this size and four times in five.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from ttabench.records.schema import RunRecord
from ttabench.report import figures
from ttabench.report.blocks import CEILING, FLOOR, Group
from ttabench.report.compare import Block, Comparison
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference, between
from ttabench.report.entries import Entry, ceiling_of, ends_of, floor_of, running
from ttabench.report.finding import file_called
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
NO_ANSWER = {"ask_ms", "ask_cpu_ms", "context_tokens", "gold_share", "gold_rank", "gold_age", "kept_pieces"}
"""Columns of samples that say how a query was answered, and not what the answer was; some in older runs alone."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
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
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return "" if math.isclose(percent, 100) else f"{shown} % of the bytes of {other}"


def cautions(comparison: Comparison) -> Iterator[str]:
    """Where a control fails, where what varies is there once, and what is set aside or not counted."""
    for which, blocks in _alike((end, block) for block in comparison.blocks for end in _ends(block)):
        yield f"{which}{_on(comparison, blocks)}."
    if over := [clause for block in comparison.blocks for clause in _over_ceiling(comparison, block)]:
        more = [f"{len(over) - MANY} more blocks"] * (len(over) > MANY)
        yield f"The ceiling may be broken: {'; '.join([*over[:MANY], *more])}. {CHECK}"
    for (label, end), blocks in _alike((pair, block) for block in comparison.blocks for pair in same_as(block)):
        whose, asks = ("full context", "was it applied?") if end == CEILING else (end, "its context changed no answer.")
        yield f"The answers of {label}{_on(comparison, blocks)} are those of {whose}, to the last bit: {asks}"
    if weak := [block for block in comparison.blocks if block.differences and lone(block)]:
        unit = weak[0].entries[0].record.unit
        only = f"There is one {unit} only{_on(comparison, weak)}, so errors are too small"
        yield f"{only}: they are over its questions, and another {unit} may differ by more. Run more seeds."
    for (kind, reason), lines in _alike(((one.aside, one.reason), one) for one in comparison.aside):
        limit = f" {reason[2:].replace(' ', '=')}"  # stands in labels, too
        names = listed(list(dict.fromkeys(line.label.replace(limit, "") for line in lines)), "lines")
        where = f"{names} {reason}{_on(comparison, lines)}" if kind != "limit" else f"{names}{_on(comparison, lines)}"
        ceiling = ", so it is no ceiling" * (kind == "cut" and names == CEILING)
        end = "; that is full context, whatever the name" * (kind == "whole") + ceiling
        yield f"Set aside{f' ({reason})' * (kind == 'limit')}: {where}{end}."
    if (standing := comparison.standing) and standing.left_out:
        yield f"Not in this order (not run in all of these blocks): {listed(list(standing.left_out), 'lines')}."
    rest = [block for place, block in enumerate(comparison.blocks) if standing and place not in standing.blocks]
    if rest:
        yield f"Not counted in this order: {listed([block.place.brief for block in rest], 'blocks')}."


def _alike(pairs: Iterable[tuple[K, V]]) -> list[tuple[K, list[V]]]:
    """Values by their keys, in the order of the first of each."""
    values: dict[K, list[V]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return list(values.items())


def theirs_sentences(comparison: Comparison) -> Iterator[str]:
    """Which lines are of others, a sentence a submission."""
    theirs = (
        (one.theirs, one.label.removesuffix(f" (theirs: {one.theirs})")) for one in comparison.entries if one.theirs
    )
    for name, labels in _alike(theirs):
        yield f"Made by others, from {file_called(name)}: {listed(list(dict.fromkeys(labels)), 'lines')}."


def _on(comparison: Comparison, where: Sequence[Block | Entry]) -> str:
    """In which blocks, where there are several."""
    briefs = list(dict.fromkeys(one.place.brief for one in where))
    return f" on {listed(briefs, 'blocks')}" if len(comparison.blocks) > 1 else ""


def _ends(block: Block) -> Iterator[str]:
    """Which of several lines of `none` is the floor, and which of `icl` the ceiling, or that none is."""
    for end, which, method in (("floor", floor_of, FLOOR), ("ceiling", ceiling_of, CEILING)):
        lines, one = ends_of(block.entries, method), which(block.entries)
        if len(lines) > 1:
            names = listed([line.label for line in lines], f"lines of {method}")
            told = f"{one.label} is the {end}, for more other lines were run as it was" if one else f"none is the {end}"
            yield f"Of {names}, {told}"


def _over_ceiling(comparison: Comparison, block: Block) -> list[str]:
    """That the ceiling is worse than a line, beyond chance: by the largest difference."""
    ceiling = ceiling_of(block.entries)
    apart = [block.between(ceiling.label, entry.label) for entry in running(block.entries)] if ceiling else []
    over = min((one for one in apart if one and one.outcome == -1), key=lambda one: one.gain, default=None)
    where = _on(comparison, [block])
    return [f"{over.left} is {Field(comparison, [block]).apart(over.left, over.right)}{where}"] if over else []


def same_as(block: Block) -> Iterator[tuple[str, str]]:
    """(label, method of the control) of lines that read something and whose answers are the control's, bit by bit. Full
    context counts against none, too. A line that is marked already, for it evicted nothing, is left out."""
    own = [entry for entry in block.entries if entry.state_of == "own"]
    for entry in (
        one for one in own if one.aside != "whole" and all(run.cost.get("tokens_read") for run in one.records)
    ):
        ends = (FLOOR,) if entry.method == CEILING else (FLOOR, CEILING)
        same = [control.method for control in own if control.method in ends and control.method != entry.method
                and _same_answers(entry, control)]  # fmt: skip
        if same:
            yield entry.label, same[0]


def _same_answers(group: Group, control: Group) -> bool:
    """Whether every run of a group has the answers of the control's run with its seed, by the digests of both records;
    likelihoods are among them, which other weights or keys change."""
    known = {record.config.get("seed"): _answers(record) for record in control.records}
    answers = [(_answers(record), known.get(record.config.get("seed"))) for record in group.records]
    return all({"prediction", "logprobs"} <= ours.keys() and ours == theirs for ours, theirs in answers)


def _answers(record: RunRecord) -> dict[str, str]:
    return {name: digest for name, digest in record.sample_digests.items() if name not in NO_ANSWER}


def problems(comparison: Comparison) -> list[str]:
    """What --strict does not accept, a line each without a full stop: what is set aside, but for a window that cut the
    context, is not paired, answers like a control, lacks a seed or the metric, read other rows, or is damaged."""
    names = [block.place.name + block.place.metric for block in comparison.blocks]
    lines = [f"{block.place.name}: another base of the same name in another block"
             for block, name in zip(comparison.blocks, names, strict=True) if names.count(name) > 1]  # fmt: skip
    for block in comparison.blocks:
        own = [f"{one.left} and {one.right} are not paired: {one.reason}" for one in block.unpaired]
        every = {seed for entry in block.entries for seed in entry.seeds}
        own += [f"{entry.label} lacks seed {', '.join(map(str, lacking))}"
                for entry in block.entries if (lacking := sorted(every - {*entry.seeds}))]  # fmt: skip
        own += [*_other_rows(block), *(f"{label} has the answers of {end}" for label, end in same_as(block))]
        lines += [f"{block.place.brief}: {line}" for line in own]
    lines += [f"{one.place.brief}: {one.label} is set aside: {one.reason}"
              for one in comparison.aside if one.aside != "cut"]  # fmt: skip
    if comparison.without_metric:
        lines.append(f"without the metric: {', '.join(comparison.without_metric)}")
    if damaged := len(comparison.damaged):
        lines.append(f"damaged runs, or files of runs: {damaged}")
    return lines


def _other_rows(block: Block) -> Iterator[str]:
    """Runs that should have read the same rows, and did not."""
    digests: dict[str, dict[str, str]] = {}
    for entry in block.entries:
        for config in (with_defaults(record.config) for record in entry.records):
            same = repr((config["seed"], config.get("limit"), sorted(config["task_options"].items(), key=str)))
            if rows := config["inputs"].get("rows"):
                digests.setdefault(same, {}).setdefault(rows, f"{entry.label} with seed {config['seed']}")
    yield from (f"other rows, or another version of them: {', '.join(by_rows.values())}"
                for by_rows in digests.values() if len(by_rows) > 1)  # fmt: skip
